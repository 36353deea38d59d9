#include "config/gang_keys.hpp"

#include "hat/config/checks.hpp"

namespace hat {

void add_gang_keys(OptionSet& options, GangConfig& gang) {
  options.add_named<SplitPolicy>(
      "split.policy", gang.policy,
      {{"auto", SplitPolicy::automatic}, {"never", SplitPolicy::never}, {"always", SplitPolicy::always}},
      "One sequence is computed by several workers at once, exactly. auto: where the step is predicted to end earlier, "
      "and where a sequence fits into the memory of no worker; whether that is faster is measured: now and then some "
      "steps go without (a line says what came of it), and the better way goes on. never. always: every sequence by "
      "all "
      "of them (the usual sequence parallelism). With unbounded staleness, where nobody waits for the end of a step, "
      "auto is never");
  options
      .add("split.max_workers", gang.max_workers, "Most workers of one sequence; 0: all, 1: as split.policy = never")
      ->check(integer_in(0, 1'000'000));
  options.add_named<WireFormat>("split.wire", gang.wire, {{"fp32", WireFormat::fp32}, {"bf16", WireFormat::bf16}},
                                "What workers of one sequence send each other: keys, values and their gradients in "
                                "fp32 or bf16. What is computed in bf16 travels as it is. Without effect where no "
                                "sequence is split");
}

void check_gang(const OptionSet& options, const Deck& deck) {
  if (deck.gang.policy != SplitPolicy::always) return;
  if (deck.staleness == kUnbounded) {
    throw options.error("split.policy",
                        "always needs a bound of staleness: the workers of one sequence compute on the same version",
                        {"staleness"});
  }
  if (deck.gang.max_workers == 1) {
    throw options.error("split.max_workers", "1 splits nothing, but split.policy is always", {"split.policy"});
  }
}

}  // namespace hat
