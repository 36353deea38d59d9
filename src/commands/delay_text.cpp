#include "commands/delay_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "hat/core/text.hpp"

namespace hat {

std::string describe_delay(const Deck& deck) {
  std::vector<std::string> remedies;
  if (deck.delay.predict) remedies.emplace_back("predicted weights");
  if (deck.delay.sync_steps > 0)
    remedies.push_back(fmt::format("first {} synchronous", counted(deck.delay.sync_steps, "step")));
  if (deck.delay.compensation > 0) remedies.push_back(fmt::format("compensation {:g}", deck.delay.compensation));
  if (deck.optimizer.momentum_rule == MomentumRule::staleness) remedies.emplace_back("momentum lowered by staleness");
  const StalenessLimitConfig& limit = deck.staleness_limit;
  if (limit.is_set()) {
    std::vector<std::string> bounds;
    if (limit.versions > 0) bounds.push_back(counted(limit.versions, "version"));
    if (limit.seconds > 0) bounds.push_back(fmt::format("{:g} s", limit.seconds));
    const char* const action = limit.action == OverLimit::apply   ? "are counted"
                               : limit.action == OverLimit::scale ? "are scaled"
                                                                  : "are recomputed";
    remedies.push_back(fmt::format("pushes later than {} {}", fmt::join(bounds, " or "), action));
  }
  return fmt::format("{}", fmt::join(remedies, ", "));
}

}  // namespace hat
