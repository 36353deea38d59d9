#include "hat/comm/versioned_slots.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "hat/core/error.hpp"

namespace hat {

namespace {

/// Where a body is read into: a bf16 one fills the upper half of its target.
std::span<std::byte> landing(const SlotPull::Target& target) {
  const std::span<float> values(target.values, static_cast<size_t>(target.part.count));
  return std::as_writable_bytes(values).last(static_cast<size_t>(target.part.body_bytes()));
}

/// From `landing` over the whole target, from the front: a value is written only where those before it were read.
void widen(const SlotPull::Target& target) {
  constexpr size_t kChunk = 1024;
  std::array<bfloat16, kChunk> chunk;
  std::span<float> values(target.values, static_cast<size_t>(target.part.count));
  for (std::span<std::byte> from = landing(target); !values.empty();) {
    const size_t n = std::min(kChunk, values.size());
    std::memcpy(chunk.data(), from.data(), n * sizeof(bfloat16));
    to_float(std::span(chunk).first(n), values.first(n));
    from = from.subspan(n * sizeof(bfloat16));
    values = values.subspan(n);
  }
}

constexpr int64_t kTravelOffset = sizeof(int64_t);  // in a header

}  // namespace

SlotPublisher::SlotPublisher(const Window& window, const PartSlots& part) : window_(&window), part_(part) {
  if (part_.format == PullFormat::bf16) values_.resize(static_cast<size_t>(part_.count));
  store(part_.offset, PartSlots::kNothingYet);
  for (int64_t slot = 0; slot < part_.slots; ++slot) store(part_.header_offset(slot), PartSlots::kNothingYet);
  window_->sync();
}

int64_t* SlotPublisher::word(int64_t offset) const {
  return reinterpret_cast<int64_t*>(window_->local() + offset);  // window memory is 64-byte aligned, offsets too
}

void SlotPublisher::store(int64_t offset, int64_t value) const {
  std::atomic_ref<int64_t>(*word(offset)).store(value, std::memory_order_seq_cst);
}

template <class T>
std::span<T> SlotPublisher::body(int64_t version) const {
  return {reinterpret_cast<T*>(window_->local() + part_.body_offset(version)), static_cast<size_t>(part_.count)};
}

void SlotPublisher::open(int64_t version) const {
  store(part_.header_offset(version), PartSlots::kBeingWritten);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  window_->sync();
}

std::span<float> SlotPublisher::begin(int64_t version) {
  if (part_.format == PullFormat::bf16) return values_;
  open(version);
  return body<float>(version);
}

void SlotPublisher::publish(int64_t version, double push_travel_s) {
  if (part_.format == PullFormat::bf16) {
    open(version);
    to_bfloat16(values_, body<bfloat16>(version));
  }
  store(part_.header_offset(version) + kTravelOffset, static_cast<int64_t>(1e9 * push_travel_s));
  std::atomic_thread_fence(std::memory_order_seq_cst);
  store(part_.header_offset(version), version);
  store(part_.offset, version);
  window_->sync();
  latest_ = version;
}

std::span<const float> SlotPublisher::values() const {
  if (part_.format == PullFormat::bf16) return values_;
  return body<const float>(latest_);
}

void SlotPublisher::read(int64_t version, int64_t first, std::span<float> values) const {
  const int64_t held = *word(part_.header_offset(version));
  if (held != version) throw Error(fmt::format("version {} of a part is not in its slot any more", version));
  if (part_.format == PullFormat::bf16) {
    to_float(body<const bfloat16>(version).subspan(static_cast<size_t>(first), values.size()), values);
  } else {
    std::ranges::copy(body<const float>(version).subspan(static_cast<size_t>(first), values.size()), values.begin());
  }
}

int64_t OwnSlots::load(int64_t offset) const {
  auto* word = reinterpret_cast<int64_t*>(window_->local() + offset);
  return std::atomic_ref<int64_t>(*word).load(std::memory_order_seq_cst);
}

double OwnSlots::push_travel_s(int64_t version) const {
  return 1e-9 * static_cast<double>(load(part_.header_offset(version) + kTravelOffset));
}

const float* OwnSlots::values(int64_t version) const {
  return reinterpret_cast<const float*>(window_->local() + part_.body_offset(version));
}

SlotPull::SlotPull(const Window& window, std::vector<Target> targets, int64_t wanted, Rule rule, int64_t have,
                   PullCounters& counters, PullCheck check)
    : window_(&window),
      targets_(std::move(targets)),
      wanted_(wanted),
      rule_(rule),
      have_(have),
      counters_(&counters),
      check_(check),
      headers_(targets_.size()),
      requests_(targets_.size()) {
  restart();
}

void SlotPull::restart() {
  if (rule_ == Rule::exact) {
    version_ = wanted_;
    start_headers();
  } else {
    start_look();
  }
}

void SlotPull::start_look() {
  state_ = State::look;
  for (size_t i = 0; i < targets_.size(); ++i) {
    requests_[i] = window_->start_get(std::as_writable_bytes(std::span(&headers_[i].version, 1)),
                                      targets_[i].part.server_rank, targets_[i].part.offset);
  }
}

void SlotPull::start_headers() {
  state_ = State::headers;
  for (size_t i = 0; i < targets_.size(); ++i) {
    requests_[i] = window_->start_get(std::as_writable_bytes(std::span(&headers_[i], 1)), targets_[i].part.server_rank,
                                      targets_[i].part.header_offset(version_));
  }
}

void SlotPull::start_bodies() {
  state_ = State::bodies;
  for (size_t i = 0; i < targets_.size(); ++i) {
    const PartSlots& part = targets_[i].part;
    requests_[i] = window_->start_transfer(landing(targets_[i]), part.server_rank, part.body_offset(version_));
    counters_->bytes += part.body_bytes();
  }
}

void SlotPull::start_headers_again() {
  start_headers();
  state_ = State::headers_again;
}

void SlotPull::accept() {
  for (const Target& target : targets_) {
    if (target.part.format == PullFormat::bf16) widen(target);
  }
  ++counters_->accepted;
}

bool SlotPull::all_complete() {
  return std::all_of(requests_.begin(), requests_.end(), [](Request& request) { return request.test(); });
}

double SlotPull::push_travel_s() const {
  return 1e-9 * static_cast<double>(std::ranges::max(headers_, {}, &Header::push_travel_ns).push_travel_ns);
}

bool SlotPull::advance(State goal) {
  while (state_ < goal) {
    if (!all_complete()) return false;
    // In shared memory a get is a plain copy by this processor: those that follow must not be taken before it.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const auto [first, last] = std::ranges::minmax(headers_, {}, &Header::version);
    const int64_t oldest = first.version;
    const int64_t newest = last.version;
    switch (state_) {
      case State::look:
        version_ = oldest;
        if (version_ < wanted_) {
          ++counters_->polls;
          start_look();
          return false;
        }
        if (unchanged()) {
          state_ = State::done;
          return true;
        }
        start_headers();
        break;
      case State::headers:
        if (oldest == version_ && newest == version_) {
          state_ = State::found;
          break;
        }
        if (rule_ == Rule::exact && newest > version_) {
          throw Error(fmt::format("version {} of a block was overwritten by version {} before it was pulled", version_,
                                  newest));
        }
        ++counters_->polls;
        restart();
        return false;
      case State::found:
        start_bodies();
        break;
      case State::bodies:
        if (check_ == PullCheck::off) {
          state_ = State::done;
          break;
        }
        start_headers_again();
        break;
      case State::headers_again:
        if (oldest == version_ && newest == version_) {
          state_ = State::done;
          break;
        }
        ++counters_->rejected;
        restart();
        return false;
      case State::done:
        break;
    }
    if (state_ == State::done) accept();
  }
  return true;
}

}  // namespace hat
