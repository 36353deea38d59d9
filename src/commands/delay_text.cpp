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
  return fmt::format("{}", fmt::join(remedies, ", "));
}

}  // namespace hat
