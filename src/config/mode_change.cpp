#include "config/mode_change.hpp"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace hat {

void check_mode_change(const OptionSet& options, const Deck& deck) {
  const bool unbounded = deck.mode == Mode::async && deck.staleness == kUnbounded;
  std::string missing;
  const auto require = [&](bool is_wrong, const std::string& key, const char* option) {
    if (is_wrong && options.nearness(key) < options.nearness("mode")) missing += fmt::format(" --{}{}", key, option);
  };
  const bool sync = deck.mode == Mode::sync;
  require(sync && deck.staleness != 0, "staleness", " 0");
  require(deck.mode == Mode::hybrid && deck.staleness == kUnbounded, "staleness", " 1");
  require(deck.mode == Mode::async && deck.barriers != std::vector<std::string>{"none"}, "barriers", " none");
  require(!sync && !unbounded && deck.clip.rule == ClipRule::global, "clip", " previous");
  require(sync && deck.delay.predict, "staleness.predict", "=false");
  require(sync && deck.delay.sync_steps > 0, "staleness.sync_steps", " 0");
  require(sync && deck.delay.compensation > 0, "staleness.compensation", " 0");
  require(sync && deck.optimizer.momentum_rule != MomentumRule::fixed, "optimizer.momentum_rule", " fixed");
  require(unbounded && deck.staleness_rule == StalenessRule::exact, "staleness.rule", " freshest");
  require(!unbounded && deck.staleness_limit.versions > 0, "staleness.limit", " 0");
  require(!unbounded && deck.staleness_limit.seconds > 0, "staleness.limit_s", " 0");
  require(!unbounded && deck.staleness_limit.action != OverLimit::apply, "staleness.over_limit", " apply");
  if (missing.empty()) return;
  throw options.error("mode",
                      fmt::format("does not go with settings of the deck or the environment; pass also{}", missing));
}

}  // namespace hat
