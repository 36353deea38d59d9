#include "hat/comm/mailbox.hpp"

#include <algorithm>
#include <cstring>
#include <span>

#include "hat/core/error.hpp"

namespace hat {

void MessageWriter::append(const void* data, size_t size) {
  const size_t end = bytes_.size();
  bytes_.resize(end + size);
  if (size > 0) std::memcpy(bytes_.data() + end, data, size);
}

size_t MessageReader::take_count(size_t element_bytes) {
  int64_t count = 0;
  (*this)(count);
  if (count < 0 || static_cast<size_t>(count) > bytes_.size() / element_bytes) throw Error("a message is cut short");
  return static_cast<size_t>(count);
}

void MessageReader::take(void* data, size_t size) {
  if (size > bytes_.size()) throw Error("a message is cut short");
  if (size > 0) std::memcpy(data, bytes_.data(), size);
  bytes_ = bytes_.subspan(size);
}

FaultEffect Mailbox::fault_at(MessageKind kind) {
  switch (kind) {
    case MessageKind::lease_request:
      return fault_point(FaultPoint::lease_request);
    case MessageKind::lease:
      return fault_point(FaultPoint::lease);
    case MessageKind::unit_report:
    case MessageKind::evaluation_report:
    case MessageKind::gradient_sketch:
    case MessageKind::computed_unit:
    case MessageKind::worker_summary:
      return fault_point(FaultPoint::report);
    case MessageKind::norm_share:
    case MessageKind::norm_total:
    case MessageKind::step_complete:
    case MessageKind::checkpoint_written:
      return fault_point(FaultPoint::commit);
    case MessageKind::shutdown:
    case MessageKind::stop_request:
    case MessageKind::stop_at:
      return fault_point(FaultPoint::control);
    case MessageKind::push:   // with its body, by whoever sends that
    case MessageKind::alive:  // as many as time has it
      break;
  }
  return FaultEffect::none;
}

void Mailbox::post_bytes(MessageWriter& message, FaultEffect effect, int rank, MailTag tag) {
  message(Postmark{.role = static_cast<int64_t>(own_tag_), .number = ++posted_[{rank, static_cast<int64_t>(tag)}]});
  if (effect == FaultEffect::drop) return;
  std::vector<std::byte> bytes = message.take();
  if (effect == FaultEffect::duplicate) start_send(bytes, rank, tag);
  start_send(std::move(bytes), rank, tag);
}

void Mailbox::start_send(std::vector<std::byte> bytes, int rank, MailTag tag) {
  outgoing_.push_back({.bytes = std::move(bytes), .request = Request()});
  outgoing_.back().request = communicator_->start_send(outgoing_.back().bytes, rank, static_cast<int>(tag));
}

std::unique_ptr<Mail> Mailbox::try_receive() {
  flush();
  while (std::optional<Incoming> incoming = communicator_->try_receive(static_cast<int>(own_tag_))) {
    Postmark mark;
    const size_t end = incoming->data.size() - std::min(sizeof mark, incoming->data.size());
    MessageReader(std::span(incoming->data).subspan(end))(mark);
    incoming->data.resize(end);
    int64_t& last = received_[{incoming->source, mark.role}];
    if (mark.number <= last) continue;
    if (mark.number > last + 1) {
      throw Error(fmt::format("a message of rank {} was lost: its number {} is here, number {} is not",
                              incoming->source, mark.number, last + 1));
    }
    last = mark.number;
    return std::make_unique<Mail>(std::move(*incoming));
  }
  return nullptr;
}

}  // namespace hat
