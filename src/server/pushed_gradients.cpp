#include "server/pushed_gradients.hpp"

#include <algorithm>

#include "hat/gradient/gradient_sum.hpp"

namespace hat {

namespace {
bool is_of(const LoggedPush& push, const LoggedUpdate& update) {
  return push.step == update.step && push.begin >= update.begin &&
         push.begin + push.count <= update.begin + update.count;
}

/// Unbounded. Where another unit of as many tokens came in between, its update came before, too.
template <class Pushes>
auto find_push(Pushes& pushes, const LoggedUpdate& update) {
  return std::ranges::find_if(
      pushes, [&](const auto& push) { return is_of(push.row, update) && push.row.tokens == update.tokens; });
}
}  // namespace

PushedGradients::PushedGradients(const RunPlan& plan, std::string log_name, std::vector<Push> pushes)
    : plan_(plan), log_name_(std::move(log_name)) {
  for (Push& push : pushes) {
    std::deque<Push>& of_key = pushes_[key(push.row.block, push.row.step)];
    of_key.push_back(std::move(push));
  }
}

InputError PushedGradients::missing(const LoggedUpdate& update) const {
  return {log_name_, "pushes", fmt::format("lacks pushes of step {}", update.step)};
}

std::vector<const PushedGradients::Push*> PushedGradients::pushes_of(const LoggedUpdate& update) const {
  const auto found = pushes_.find(key(update.block, update.step));
  if (found == pushes_.end()) throw missing(update);
  if (plan_.unbounded()) {
    const auto push = find_push(found->second, update);
    if (push == found->second.end()) throw missing(update);
    return {&*push};
  }
  std::vector<const Push*> pushes;
  for (const Push& push : found->second) {
    if (is_of(push.row, update)) pushes.push_back(&push);
  }
  return pushes;
}

void PushedGradients::take(const LoggedUpdate& update, const Reader& read, std::vector<float>& gradient) {
  const std::vector<const Push*> pushes = pushes_of(update);
  if (plan_.unbounded()) {
    read(*pushes.front(), gradient);
    std::deque<Push>& waiting = pushes_.at(key(update.block, update.step));
    waiting.erase(find_push(waiting, update));
    return;
  }
  const AddingOrder adding = plan_.deck.deterministic ? AddingOrder::by_unit : AddingOrder::arrival;
  GradientSum sum(update.count, update.step_tokens, adding);
  std::vector<float> values;
  for (const Push* push : pushes) {
    read(*push, values);
    const LoggedPush& row = push->row;
    if (row.complete != 0) {
      sum.set(row.begin - update.begin, values);
    } else {
      sum.add(row.begin - update.begin, values, row.tokens, row.order);
    }
  }
  if (!sum.complete()) throw missing(update);
  gradient = *sum.values();
}

}  // namespace hat
