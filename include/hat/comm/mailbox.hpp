#pragma once
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "hat/comm/communicator.hpp"
#include "hat/comm/messages.hpp"
#include "hat/core/fault.hpp"

namespace hat {

/// Appends fields to a byte vector; MessageReader takes them off again in the same order.
class MessageWriter {
 public:
  template <class T>
  void operator()(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(&value, sizeof value);
  }
  template <class T>
  void operator()(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    (*this)(static_cast<int64_t>(values.size()));
    append(values.data(), values.size() * sizeof(T));
  }
  void operator()(const std::string& text) {
    (*this)(static_cast<int64_t>(text.size()));
    append(text.data(), text.size());
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void append(const void* data, size_t size);
  std::vector<std::byte> bytes_;
};

/// Throws Error when the message is shorter than its fields.
class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  void operator()(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    take(&value, sizeof value);
  }
  template <class T>
  void operator()(std::vector<T>& values) {
    values.resize(take_count(sizeof(T)));
    take(values.data(), values.size() * sizeof(T));
  }
  void operator()(std::string& text) {
    text.resize(take_count(1));
    take(text.data(), text.size());
  }

 private:
  size_t take_count(size_t element_bytes);
  void take(void* data, size_t size);
  std::span<const std::byte> bytes_;
};

/// A struct with `fields`, for the collectives of Communicator that carry texts; `unpacked` takes it out again.
template <class Message>
std::string packed(Message message) {
  MessageWriter writer;
  message.fields(writer);
  const std::vector<std::byte> bytes = writer.take();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
template <class Message>
Message unpacked(const std::string& text) {
  MessageReader reader(std::as_bytes(std::span(text)));
  Message message;
  message.fields(reader);
  return message;
}

/// A control message that has arrived.
class Mail {
 public:
  explicit Mail(Incoming incoming) : incoming_(std::move(incoming)), reader_(incoming_.data) { reader_(kind_); }
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;

  MessageKind kind() const { return kind_; }
  int source() const { return incoming_.source; }
  /// The message, which must be of the kind that arrived.
  template <class Message>
  Message open() {
    Message message;
    message.fields(reader_);
    return message;
  }

 private:
  Incoming incoming_;
  MessageReader reader_;
  MessageKind kind_{};
};

/// A rank that is server and worker at once has two mailboxes on the same rank: each kind of message goes to one of the
/// two roles, so each has a tag of its own.
enum class MailTag : int { to_server = 1, to_worker = 2, push_body = 3 };

/// Control messages over one communicator. Sends never block; messages between two ranks arrive in the order of
/// posting. (Bodies of gradients travel beside it, on MailTag::push_body.) Both sides count: a message that comes twice
/// is dropped, and one that is missing is an error as soon as a later one is there.
class Mailbox {
 public:
  Mailbox(const Communicator& communicator, MailTag own_tag) : communicator_(&communicator), own_tag_(own_tag) {}

  template <class Message>
  void post(Message message, int rank, MailTag tag) {
    MessageWriter writer;
    writer(Message::kKind);
    message.fields(writer);
    post_bytes(writer, fault_at(Message::kKind), rank, tag);
  }

  /// The next message for this role, if one is there. Also completes sends. Throws Error when one before it is lost.
  std::unique_ptr<Mail> try_receive();

  /// True when every posted message has left.
  bool flush() {
    std::erase_if(outgoing_, [](Outgoing& outgoing) { return outgoing.request.test(); });
    return outgoing_.empty();
  }

  const Communicator& communicator() const { return *communicator_; }

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;
    Request request;
  };
  /// Stands behind the fields of a message.
  struct Postmark {
    int64_t role = 0;    // MailTag of the one that posted it
    int64_t number = 0;  // of its messages to this one, from 1
  };
  using Correspondent = std::pair<int, int64_t>;  // rank and role
  static FaultEffect fault_at(MessageKind kind);
  void post_bytes(MessageWriter& message, FaultEffect effect, int rank, MailTag tag);
  void start_send(std::vector<std::byte> bytes, int rank, MailTag tag);

  const Communicator* communicator_;
  MailTag own_tag_;
  std::map<Correspondent, int64_t> posted_;    // to each, so far
  std::map<Correspondent, int64_t> received_;  // from each: number of the last one
  std::deque<Outgoing> outgoing_;  // moving an entry leaves the bytes of its vector where the send reads them
};

}  // namespace hat
