#include "server/sensitivity.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "hat/core/error.hpp"
#include "hat/kernels/operations.hpp"

namespace hat {

namespace {

double inner(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

/// |a / a_tokens - b / b_tokens|^2
double squared_distance(std::span<const float> a, double a_tokens, std::span<const float> b, double b_tokens) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) / a_tokens - static_cast<double>(b[i]) / b_tokens;
    sum += difference * difference;
  }
  return sum;
}

double tokens_of(const GradientSketch& push) { return static_cast<double>(push.tokens); }

std::vector<float> sum_of(std::span<const GradientSketch> pushes) {
  std::vector<float> sum(static_cast<size_t>(kSketchBuckets), 0.0F);
  for (const GradientSketch& push : pushes) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += push.sketch[i];
  }
  return sum;
}

double mean_step_between(std::span<const GradientSketch> pushes) {
  double sum = 0;
  for (size_t i = 1; i < pushes.size(); ++i) {
    const GradientSketch& push = pushes[i];
    const GradientSketch& before = pushes[i - 1];
    sum += std::sqrt(squared_distance(push.sketch, tokens_of(push), before.sketch, tokens_of(before)));
  }
  return sum / static_cast<double>(pushes.size() - 1);
}

double mean_norm(std::span<const GradientSketch> pushes) {
  double sum = 0;
  for (const GradientSketch& push : pushes) sum += std::sqrt(push.sum_of_squares) / tokens_of(push);
  return sum / static_cast<double>(pushes.size());
}

// D from the sketches as well, as the sum of n_i |g_i - g|^2: as the difference of two large numbers, one of them
// estimated, it would be lost where pushes agree.
double pairwise_difference(std::span<const GradientSketch> pushes, std::span<const float> mean) {
  double tokens = 0;
  double squared_tokens = 0;
  double squares = 0;
  double deviation = 0;
  for (const GradientSketch& push : pushes) {
    const double n = tokens_of(push);
    tokens += n;
    squared_tokens += n * n;
    squares += push.sum_of_squares / n;
    deviation += n * squared_distance(push.sketch, n, mean, 1.0);
  }
  const double pairs = 2 * tokens * deviation / (tokens * tokens - squared_tokens);
  return std::sqrt(pairs / (squares / tokens));
}

}  // namespace

std::vector<float> mean_sketch(std::span<const GradientSketch> pushes) {
  std::vector<float> mean = sum_of(pushes);
  int64_t tokens = 0;
  for (const GradientSketch& push : pushes) tokens += push.tokens;
  for (float& value : mean) value /= static_cast<float>(tokens);
  return mean;
}

BlockSensitivity measure_sensitivity(std::span<const GradientSketch> pushes, std::span<const float> step_before) {
  BlockSensitivity result;
  if (pushes.empty()) return result;
  const std::vector<float> mean = mean_sketch(pushes);
  if (!step_before.empty()) result.article_steps = std::sqrt(squared_distance(mean, 1.0, step_before, 1.0));
  if (pushes.size() < 2) return result;
  result.article_pushes = mean_step_between(pushes);
  result.consecutive = result.article_pushes / mean_norm(pushes);  // not a number where all gradients are 0
  result.pairwise = pairwise_difference(pushes, mean);
  return result;
}

int64_t pushes_against_others(std::span<const GradientSketch> pushes) {
  const std::vector<float> sum = sum_of(pushes);
  return std::ranges::count_if(pushes, [&](const GradientSketch& push) {
    return inner(push.sketch, sum) - inner(push.sketch, push.sketch) < 0;
  });
}

Sensitivity::Sensitivity(const RunPlan& plan, int64_t lookahead)
    : plan_(plan),
      lookahead_(lookahead),
      schedule_(plan),
      step_before_(plan.layout.blocks.size()),
      chosen_(plan.layout.blocks.size(), false),
      chosen_before_(plan.first_step) {}

bool Sensitivity::add(GradientSketch sketch, int64_t step_tokens) {
  const size_t blocks = plan_.layout.blocks.size();
  OpenStep& step = open_[sketch.step];
  step.pushes.resize(blocks);
  step.tokens.resize(blocks, 0);
  const auto block = static_cast<size_t>(sketch.block);
  if (block >= blocks || sketch.tokens <= 0 || sketch.sketch.size() != static_cast<size_t>(kSketchBuckets)) {
    throw Error(fmt::format("worker {} sent a gradient sketch that cannot be (block {}, {} tokens, {} buckets)",
                            sketch.worker, sketch.block, sketch.tokens, sketch.sketch.size()));
  }
  step.tokens[block] += sketch.tokens;
  if (step.tokens[block] > step_tokens) {
    throw Error(fmt::format("sketches of block {} in step {} are of {} target tokens, but the step has {}", block,
                            sketch.step, step.tokens[block], step_tokens));
  }
  if (step.tokens[block] == step_tokens) ++step.blocks_complete;
  step.pushes[block].push_back(std::move(sketch));
  return step.blocks_complete == static_cast<int64_t>(blocks);
}

void Sensitivity::close(int64_t step, StepBlocks& result) {
  if (!plan_.records_sketches()) return;
  OpenStep open = open_.extract(step).mapped();
  for (size_t block = 0; block < open.pushes.size(); ++block) {
    std::vector<GradientSketch>& pushes = open.pushes[block];
    std::ranges::sort(pushes, {}, &GradientSketch::place);
    result.is_barrier.push_back(schedule_.is_barrier(static_cast<int64_t>(block), step));
    result.sensitivity.push_back(measure_sensitivity(pushes, step_before_[block]));
    result.pushes.push_back(static_cast<int64_t>(pushes.size()));
    result.pushes_against.push_back(pushes_against_others(pushes));
    step_before_[block] = mean_sketch(pushes);
  }
  if (plan_.barriers_change()) measured_[step] = result.sensitivity;
}

double Sensitivity::window_mean(size_t block) const {
  double sum = 0;
  int64_t defined = 0;
  for (const std::vector<BlockSensitivity>& step : window_) {
    const double of_step = chosen_measure(plan_.deck.sensitivity, step[block]);
    if (std::isnan(of_step)) continue;
    sum += of_step;
    ++defined;
  }
  return sum / static_cast<double>(defined);
}

void Sensitivity::choose(int64_t step) {
  const int64_t newest = step - lookahead_;
  if (newest < plan_.first_step) return;
  const auto measured = measured_.extract(newest);
  if (measured.empty()) throw Error(fmt::format("step {} was leased before step {} was committed", step, newest));
  window_.push_back(measured.mapped());
  const auto window = static_cast<size_t>(plan_.deck.sensitivity.window);
  if (window_.size() > window) window_.pop_front();
  if (window_.size() < window) return;
  const double above = plan_.deck.sensitivity.threshold;
  const double below = above * (1 - plan_.deck.sensitivity.hysteresis);
  for (size_t block = 0; block < chosen_.size(); ++block) {
    const double mean = window_mean(block);
    const bool chosen = chosen_[block] ? !(mean < below) : mean > above;  // as before where the mean is undefined
    if (plan_.is_barrier[block] || chosen == chosen_[block]) continue;
    chosen_[block] = chosen;
    changes_.emplace(step, BarrierChange{.step = step, .block = static_cast<int64_t>(block), .is_barrier = chosen});
    schedule_.learn({changes_.rbegin()->second}, step);
  }
}

void Sensitivity::tell(int64_t worker, Lease& lease) {
  if (!plan_.barriers_change()) return;
  lease.barriers_before = lease.kind == LeaseKind::train ? lease.step + 1 : lease.step;
  for (; chosen_before_ < lease.barriers_before; ++chosen_before_) {
    choose(chosen_before_);
    schedule_.learn({}, chosen_before_ + 1);
  }
  int64_t& told_before = told_before_.try_emplace(worker, plan_.first_step).first->second;
  for (auto change = changes_.lower_bound(told_before);
       change != changes_.end() && change->first < lease.barriers_before; ++change) {
    lease.barrier_changes.push_back(change->second);
  }
  told_before = std::max(told_before, lease.barriers_before);
}

}  // namespace hat
