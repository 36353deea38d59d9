#include "batch_upload.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include "hat/core/error.hpp"

namespace hat {

namespace {

void check_offsets(const PackedBatch& batch) {
  if (batch.offsets.empty() || batch.offsets.front() != 0 ||
      static_cast<size_t>(batch.offsets.back()) != batch.inputs.size() ||
      !std::is_sorted(batch.offsets.begin(), batch.offsets.end())) {
    throw Error(fmt::format("batch of {} tokens: the {} document offsets do not ascend from 0 to its end",
                            batch.inputs.size(), batch.offsets.size()));
  }
}

void check_tokens(const PackedBatch& batch, int64_t vocabulary) {
  if (batch.targets.size() != batch.inputs.size()) {
    throw Error(fmt::format("batch of {} tokens has {} targets", batch.inputs.size(), batch.targets.size()));
  }
  for (size_t t = 0; t < batch.inputs.size(); ++t) {
    if (batch.inputs[t] < 0 || batch.inputs[t] >= vocabulary || batch.targets[t] >= vocabulary) {
      throw Error(fmt::format("batch position {}: token {} or target {} is outside the vocabulary of {}", t,
                              batch.inputs[t], batch.targets[t], vocabulary));
    }
  }
}

void check_range(const PackedBatch& batch) {
  if (!batch.range) return;
  const GangRange& range = *batch.range;
  const bool ascends =
      range.members() >= 1 && range.bounds.front() == 0 &&
      std::adjacent_find(range.bounds.begin(), range.bounds.end(), std::greater_equal<>()) == range.bounds.end();
  if (!ascends || range.member < 0 || range.member >= range.members()) {
    throw Error(fmt::format("member {} of a gang with {} bounds: they do not ascend from 0, or it is none of the gang",
                            range.member, range.bounds.size()));
  }
  if (batch.offsets.size() != 2 || range.tokens() != batch.offsets.back()) {
    throw Error(fmt::format("range [{}, {}) of a document: the batch has {} tokens in {} documents", range.begin(),
                            range.end(), batch.inputs.size(), batch.offsets.size() - 1));
  }
}

}  // namespace

int64_t BatchUpload::table_length(int64_t longest) const {
  // As long as documents may be, but not much longer than they are: nobody fills tables for 10^9 positions. Twice the
  // need, so that a text that grows token by token (generation) seldom computes them again.
  constexpr int64_t kAtOnce = 4096;
  return std::max(std::min(2 * longest, std::max(longest, config_.max_length)), std::min(config_.max_length, kAtOnce));
}

void BatchUpload::check(const PackedBatch& batch) const {
  check_offsets(batch);
  check_tokens(batch, config_.vocabulary);
  check_range(batch);
  const int64_t longest = longest_of(batch);
  if (config_.family == ModelFamily::gpt2 && longest > config_.max_length) {
    throw Error(
        fmt::format("document of {} tokens is longer than the {} learned positions", longest, config_.max_length));
  }
}

int64_t BatchUpload::longest_of(const PackedBatch& batch) {
  if (batch.range) return batch.range->end();
  int64_t longest = 0;
  for (size_t d = 0; d + 1 < batch.offsets.size(); ++d) {
    longest = std::max<int64_t>(longest, batch.offsets[d + 1] - batch.offsets[d]);
  }
  return longest;
}

DeviceBatch BatchUpload::upload(const Operations& ops, const Stream& stream, const PackedBatch& batch) {
  const int64_t first_position = batch.range ? batch.range->begin() : 0;
  host_positions_.resize(batch.inputs.size());
  for (size_t d = 0; d + 1 < batch.offsets.size(); ++d) {
    const auto begin = host_positions_.begin() + batch.offsets[d];
    const auto end = host_positions_.begin() + batch.offsets[d + 1];
    std::iota(begin, end, static_cast<int32_t>(first_position));
  }

  const auto send = [&](DeviceBuffer<int32_t>& buffer, const std::vector<int32_t>& host) {
    copy_to_device(stream, host.data(), buffer.data(), static_cast<int64_t>(host.size()));
    return static_cast<const int32_t*>(buffer.data());
  };
  DeviceBatch result;
  result.tokens = static_cast<int64_t>(batch.inputs.size());
  result.inputs = send(inputs_, batch.inputs);
  result.targets = send(targets_, batch.targets);
  result.positions = send(positions_, host_positions_);
  result.documents = static_cast<int64_t>(batch.offsets.size()) - 1;
  result.range = batch.range ? &*batch.range : nullptr;
  result.offsets = send(offsets_, batch.offsets);
  if (config_.family == ModelFamily::gpt2) return result;

  if (longest_of(batch) > table_length_) {
    const int64_t head_size = config_.width / config_.heads;
    table_length_ = cosine_.size() / (head_size / 2);
    ops.rope_table(stream, table_length_, head_size, config_.rope_base, cosine_.data(), sine_.data());
  }
  result.cosine = cosine_.data();
  result.sine = sine_.data();
  return result;
}

}  // namespace hat
