#include "config/delay_keys.hpp"

#include "hat/config/checks.hpp"

namespace hat {

namespace {

/// Why no gradient of this deck is ever late; empty where some are.
std::string nothing_is_late(const Deck& deck) {
  if (deck.mode == Mode::sync) return "mode sync";
  if (deck.staleness == 0) return "staleness 0";
  if (deck.barriers == std::vector<std::string>{"all"}) return "barriers all";
  return {};
}

}  // namespace

void add_delay_keys(OptionSet& options, Deck& deck) {
  options.add_flag(
      "staleness.predict", deck.delay.predict,
      "Late gradients are taken at weights that servers predict: w + S times the last update of the block. "
      "Barrier blocks, validation and checkpoints use w. Servers keep a second set of versions. A resumed "
      "run does not know the last update, and predicts from its second step on");
  options
      .add("staleness.sync_steps", deck.delay.sync_steps,
           "First steps of training in which nothing is late (S = 0 for every block), resumed or not")
      ->check(integer_in(0, kMany));
  options
      .add("staleness.compensation", deck.delay.compensation,
           "Lambda of delay compensation (Zheng et al. 2017): late gradients g get + lambda g g / rms(g) (w now - w "
           "that g was taken at), rms over a tensor, or over each server's piece of it, so results depend on the "
           "number of servers; 0: off")
      ->check(real_in(0, 1e6));
  options.add_named<MomentumRule>(
      "optimizer.momentum_rule", deck.optimizer.momentum_rule,
      {{"fixed", MomentumRule::fixed}, {"staleness", MomentumRule::staleness}},
      "beta1 and momentum as they are, or to the power 1 + mean staleness, as measured, of an update's pushes");
}

void check_delay(const OptionSet& options, const Deck& deck) {
  const auto refuse = [&options](const std::string& key, const std::string& reason) {
    throw options.error(key, reason, {"mode", "staleness", "staleness.rule", "barriers"});
  };
  const bool unbounded = deck.staleness == kUnbounded;
  const bool by_staleness = deck.optimizer.momentum_rule == MomentumRule::staleness;
  const std::string never = nothing_is_late(deck);
  if (!never.empty()) {
    const std::string reason = fmt::format("nothing is ever late with {}; leave it out, or allow staleness", never);
    if (deck.delay.predict) refuse("staleness.predict", reason);
    if (deck.delay.sync_steps > 0) refuse("staleness.sync_steps", reason);
    if (deck.delay.compensation > 0) refuse("staleness.compensation", reason);
    if (by_staleness) refuse("optimizer.momentum_rule", reason);
  }
  if (unbounded && deck.delay.sync_steps > 0) {
    refuse("staleness.sync_steps", "unbounded staleness has no steps to wait for");
  }
  if (deck.staleness_rule == StalenessRule::exact) return;
  if (deck.delay.predict) {
    refuse("staleness.predict",
           "needs staleness.rule exact and a bound: how late a gradient will be must be known when its weights "
           "are predicted");
  }
  if (deck.delay.compensation > 0) {
    refuse("staleness.compensation",
           "needs staleness.rule exact and a bound: all gradients of an update must have been taken at "
           "the same weights, which the server still has");
  }
}

}  // namespace hat
