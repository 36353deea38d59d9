#include "hat/comm/ring_all_reduce.hpp"

#include <algorithm>

namespace hat {

Range split_evenly(int64_t count, int64_t parts, int64_t index) {
  const int64_t size = count / parts;
  const int64_t larger = count % parts;  // the first `larger` parts have one more
  const int64_t begin = index * size + std::min(index, larger);
  return {.begin = begin, .end = begin + size + (index < larger ? 1 : 0)};
}

RingAllReduce::RingAllReduce(const Communicator& ring, std::span<float> data, int tag)
    : ring_(&ring), data_(data), tag_(tag) {
  if (ring_->size() == 1) return;
  received_.resize(static_cast<size_t>(chunk(0).size()));
  start_round();
}

Range RingAllReduce::chunk(int index) const {
  const int p = ring_->size();
  return split_evenly(static_cast<int64_t>(data_.size()), p, ((index % p) + p) % p);
}

void RingAllReduce::start_round() {
  const int p = ring_->size();
  const int rank = ring_->rank();
  const bool reducing = round_ < p - 1;
  // Reduce-scatter: in round r rank i passes on chunk i - r and ends with the whole sum of chunk i + 1, which the
  // all-gather then passes on.
  const int r = reducing ? round_ : round_ - (p - 1);
  const Range out = chunk(reducing ? rank - r : rank + 1 - r);
  const Range in = chunk(reducing ? rank - r - 1 : rank - r);
  const std::span<float> target = reducing
                                      ? std::span<float>(received_).first(static_cast<size_t>(in.size()))
                                      : data_.subspan(static_cast<size_t>(in.begin), static_cast<size_t>(in.size()));
  receive_ = ring_->start_receive(std::as_writable_bytes(target), (rank + p - 1) % p, tag_);
  send_ = ring_->start_transfer(
      std::as_bytes(data_.subspan(static_cast<size_t>(out.begin), static_cast<size_t>(out.size()))), (rank + 1) % p,
      tag_);
}

void RingAllReduce::finish_round() {
  if (round_ < ring_->size() - 1) {
    const Range in = chunk(ring_->rank() - round_ - 1);
    float* sum = data_.data() + in.begin;
    for (int64_t i = 0; i < in.size(); ++i) sum[i] += received_[static_cast<size_t>(i)];
  }
  ++round_;
}

bool RingAllReduce::step() {
  const int rounds = 2 * (ring_->size() - 1);
  while (round_ < rounds) {
    const bool sent = send_.test();  // asked first: an emulated transfer leaves only when it is asked
    if (!receive_.test() || !sent) return false;
    finish_round();
    if (round_ < rounds) start_round();
  }
  return true;
}

}  // namespace hat
