#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "hat/dataset/dataset_writer.hpp"
#include "hat/ledger/ledger.hpp"
#include "io_support.hpp"

namespace hat {
namespace {

int64_t tokens_of(const std::vector<Sequence>& sequences) {
  return std::accumulate(sequences.begin(), sequences.end(), int64_t{0},
                         [](int64_t sum, const Sequence& sequence) { return sum + sequence.length; });
}

/// Nats that tell what was computed, whatever the order: sums of them are exact.
double nats_of(const Lease& lease) { return static_cast<double>(tokens_of(lease.sequences)) * 0.5; }

/// A long tail: 60 documents of 2 to 40 tokens, every 15th of 300.
class LedgerTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBatchTokens = 150;
  static constexpr int64_t kMaxLength = 128;

  LedgerTest()
      : dataset_(make_dataset(folder_ / "d.h5")), order_(dataset_, 7, kBatchTokens, kMaxLength, LongPolicy::cut) {}

  static Dataset make_dataset(const std::filesystem::path& path) {
    const auto tokenizer = make_byte_tokenizer();
    DatasetWriter writer(path, *tokenizer, {});
    for (const Split split : {Split::train, Split::validation}) {
      for (int64_t d = 0; d < 60; ++d) {
        const int64_t length = d % 15 == 0 ? 300 : 2 + d * 7 % 39;
        writer.add_text(split, std::string(static_cast<size_t>(length - 1), 'x'));
        writer.end_document(split);
      }
    }
    writer.finish();
    return Dataset(path);
  }

  LedgerOptions options(int workers) const {
    return {.workers = workers, .unit_tokens = 40, .first_step = 0, .end_step = 20, .lookahead = 2};
  }
  Ledger make(const LedgerOptions& options, int64_t groups = 3) {
    std::vector<std::vector<Sequence>> validation;
    for (int64_t group = 0; group < groups; ++group) {
      validation.push_back({{.document = group, .begin = 0, .length = 2}, {.document = 30 + group, .length = 1}});
    }
    return Ledger(order_, std::move(validation), options);
  }

  test::TemporaryFolder folder_;
  Dataset dataset_;
  DataOrder order_;
};

/// Workers and servers that act in random order. Checks on the way what a lease promises.
class Simulation {
 public:
  Simulation(Ledger& ledger, DataOrder& order, const LedgerOptions& options, unsigned seed)
      : ledger_(ledger),
        order_(order),
        options_(options),
        random_(seed),
        held_(static_cast<size_t>(options.workers)),
        no_unit_before_(static_cast<size_t>(options.workers), 0),
        finished_(static_cast<size_t>(options.workers), false) {}

  /// Until every worker was told to finish.
  void run() {
    for (int64_t moves = 0; std::find(finished_.begin(), finished_.end(), false) != finished_.end(); ++moves) {
      ASSERT_LT(moves, 200'000) << "the ledger does not come to an end";
      if (below(3) == 0) {
        let_a_server_complete();
      } else {
        let_a_worker_act(static_cast<size_t>(below(options_.workers)));
      }
      if (moves == stop_after_moves) stop();
      take_results();
    }
  }

  int64_t stop_after_moves = -1;
  int64_t end_step() const { return options_.end_step; }

  std::vector<StepResult> steps;
  std::vector<EvaluationResult> evaluations;
  std::vector<Lease> trained;
  std::map<int64_t, std::vector<std::pair<int64_t, Lease>>> leases_of_step;  // (worker, lease)

 private:
  // Exactly the steps that are begun are still done.
  void stop() {
    const int64_t committed = ledger_.committed_steps();
    int64_t begun = committed;
    for (const auto& [step, leases] : leases_of_step) begun = std::max(begun, step + 1);
    const int64_t under_way = ledger_.steps_under_way();
    const int64_t end = ledger_.stop();
    EXPECT_EQ(end, committed + under_way);
    EXPECT_EQ(ledger_.stop(), end) << "a second stop changes something";
    EXPECT_GE(end, begun);
    EXPECT_LE(end, std::max(begun, committed + options_.lookahead));
    for (const int64_t told : no_unit_before_) EXPECT_LE(told, end) << "rings of a step that will not come are entered";
    options_.end_step = end;
  }

  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }

  // A worker holds at most two leases: the one it computes and the next.
  void let_a_worker_act(size_t worker) {
    std::vector<Lease>& held = held_[worker];
    if (held.size() < 2 && !finished_[worker] && below(2) == 0) {
      accept(worker, ledger_.next(static_cast<int64_t>(worker)));
    } else if (!held.empty()) {
      const Lease lease = held.front();
      held.erase(held.begin());
      compute(static_cast<int64_t>(worker), lease);
    }
  }

  void accept(size_t worker, const Lease& lease) {
    ASSERT_GE(lease.step, no_unit_before_[worker]) << "the worker was told that it had no unit of this step left";
    no_unit_before_[worker] = lease.step;
    switch (lease.kind) {
      case LeaseKind::train:
        expect_may_train(lease);
        leases_of_step[lease.step].emplace_back(static_cast<int64_t>(worker), lease);
        held_[worker].push_back(lease);
        break;
      case LeaseKind::evaluate:
        EXPECT_EQ(lease.step, ledger_.committed_steps()) << "evaluation with something in flight";
        EXPECT_TRUE(std::all_of(held_.begin(), held_.end(), [](const auto& leases) {
          return std::all_of(leases.begin(), leases.end(),
                             [](const Lease& held) { return held.kind == LeaseKind::evaluate; });
        }));
        held_[worker].push_back(lease);
        break;
      case LeaseKind::none:
        break;
      case LeaseKind::finish:
        EXPECT_EQ(lease.step, options_.end_step);
        EXPECT_EQ(ledger_.committed_steps(), options_.end_step);
        EXPECT_TRUE(ledger_.finished());
        finished_[worker] = true;
        break;
    }
  }

  void expect_may_train(const Lease& lease) {
    const int64_t committed = ledger_.committed_steps();
    EXPECT_GE(lease.step, committed);
    EXPECT_LT(lease.step, committed + options_.lookahead);
    EXPECT_LT(lease.step, options_.end_step);
    for (const int64_t every : {options_.evaluate_every, options_.pause_every}) {
      if (every > 0) {
        EXPECT_EQ(lease.step / every, committed / every) << "leased beyond a pause";
      }
    }
    EXPECT_EQ(lease.generation, 1);
    EXPECT_FALSE(lease.sequences.empty());
    EXPECT_TRUE(lease.sequences.size() == 1 ||
                tokens_of(lease.sequences) <= std::max(options_.unit_tokens, longest_of(lease.step)));
  }

  /// Tokens of the longest sequence of a step: what is too little for a unit of its own may go with it.
  int64_t longest_of(int64_t step) {
    const Step& plan = order_.step(step);
    return std::ranges::max(plan.sequences, {}, &Sequence::length).length;
  }

  void compute(int64_t worker, const Lease& lease) {
    const int64_t tokens = tokens_of(lease.sequences);
    if (lease.kind == LeaseKind::evaluate) {
      ledger_.group_evaluated({.unit = lease.unit, .nats = nats_of(lease), .tokens = tokens});
      return;
    }
    ledger_.unit_computed({.worker = worker,
                           .unit = lease.unit,
                           .generation = lease.generation,
                           .step = lease.step,
                           .nats = nats_of(lease),
                           .tokens = tokens});
    trained.push_back(lease);
    pushed_tokens_[lease.step] += tokens;
    if (pushed_tokens_[lease.step] == order_.step(lease.step).target_tokens) {
      for (int64_t server = 0; server < options_.completions; ++server) to_complete_.emplace_back(lease.step, server);
    }
  }

  void let_a_server_complete() {
    if (to_complete_.empty()) return;
    const auto chosen = to_complete_.begin() + below(static_cast<int64_t>(to_complete_.size()));
    const auto [step, server] = *chosen;
    to_complete_.erase(chosen);
    ledger_.server_completed_step(
        {.server = server, .step = step, .block_staleness = {{.late = 0, .pushes = 1}, {.late = 1, .pushes = server}}});
  }

  void take_results() {
    for (StepResult& result : ledger_.take_steps()) steps.push_back(std::move(result));
    for (const EvaluationResult& result : ledger_.take_evaluations()) evaluations.push_back(result);
  }

  Ledger& ledger_;
  DataOrder& order_;
  LedgerOptions options_;
  std::mt19937 random_;
  std::vector<std::vector<Lease>> held_;  // by worker
  std::vector<int64_t> no_unit_before_;   // by worker
  std::vector<bool> finished_;            // by worker
  std::map<int64_t, int64_t> pushed_tokens_;
  std::vector<std::pair<int64_t, int64_t>> to_complete_;  // (step, server)
};

using SequenceKey = std::tuple<int64_t, int64_t, int64_t>;

std::multiset<SequenceKey> keys_of(const std::vector<Sequence>& sequences) {
  std::multiset<SequenceKey> keys;
  for (const Sequence& sequence : sequences) keys.emplace(sequence.document, sequence.begin, sequence.length);
  return keys;
}

/// Each step trained exactly the sequences that the data order gives it, and was committed in order with their sums.
void expect_exactly_once(const Simulation& simulation, DataOrder& order, const LedgerOptions& options) {
  std::map<int64_t, std::vector<Sequence>> trained;
  std::set<int64_t> units;
  for (const Lease& lease : simulation.trained) {
    trained[lease.step].insert(trained[lease.step].end(), lease.sequences.begin(), lease.sequences.end());
    EXPECT_TRUE(units.insert(lease.unit).second) << "unit numbers are unique in the run";
  }
  ASSERT_EQ(static_cast<int64_t>(simulation.steps.size()), options.end_step - options.first_step);
  for (size_t i = 0; i < simulation.steps.size(); ++i) {
    const StepResult& result = simulation.steps[i];
    const int64_t index = options.first_step + static_cast<int64_t>(i);
    const Step step = order.step(index);
    EXPECT_EQ(result.step, index);
    EXPECT_EQ(result.epoch, step.epoch);
    EXPECT_EQ(result.tokens, step.target_tokens);
    EXPECT_EQ(result.nats, 0.5 * static_cast<double>(step.target_tokens));
    EXPECT_EQ(result.staleness_counts,
              (std::vector<int64_t>{options.completions, options.completions * (options.completions - 1) / 2}));
    EXPECT_EQ(keys_of(trained[index]), keys_of(step.sequences)) << "step " << index;
  }
}

std::vector<int64_t> evaluated_steps(const Simulation& simulation) {
  std::vector<int64_t> steps;
  for (const EvaluationResult& result : simulation.evaluations) steps.push_back(result.step);
  return steps;
}

TEST_F(LedgerTest, EverySequenceOnceWhateverTheOrderOfEvents) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    for (const bool deterministic : {false, true}) {
      for (const Dispatch dispatch : {Dispatch::on_demand, Dispatch::static_}) {
        LedgerOptions o = options(1 + static_cast<int>(seed % 5));
        o.completions = 1 + static_cast<int>(seed % 3);
        o.dispatch = dispatch;
        o.deterministic = deterministic;
        o.lookahead = 1 + static_cast<int64_t>(seed % 4);
        o.first_step = seed % 2 == 0 ? 0 : 3;
        o.end_step = order_.steps_per_epoch(0) + 3;  // over the end of the epoch
        o.evaluate_every = seed % 4 == 0 ? 0 : 4;
        o.pause_every = seed % 3 == 0 ? 3 : 0;
        Ledger ledger = make(o);
        Simulation simulation(ledger, order_, o, seed);
        simulation.run();
        expect_exactly_once(simulation, order_, o);
        std::vector<int64_t> due{o.first_step};
        for (int64_t step = o.first_step + 1; step < o.end_step; ++step) {
          if (o.evaluate_every > 0 && step % o.evaluate_every == 0) due.push_back(step);
        }
        due.push_back(o.end_step);
        EXPECT_EQ(evaluated_steps(simulation), due);
        for (const EvaluationResult& result : simulation.evaluations) {
          EXPECT_EQ(result.tokens, 9);
          EXPECT_EQ(result.nats, 4.5);
        }
        ASSERT_FALSE(HasFailure()) << "seed " << seed;
      }
    }
  }
}

// Whenever it comes: what is begun is finished, exactly once, nothing else is begun, and nothing is evaluated any more.
TEST_F(LedgerTest, StopsBehindTheStepsThatAreBegun) {
  std::set<int64_t> ends;
  for (unsigned seed = 0; seed < 60; ++seed) {
    LedgerOptions o = options(1 + static_cast<int>(seed % 5));
    o.completions = 1 + static_cast<int>(seed % 3);
    o.dispatch = seed % 2 == 0 ? Dispatch::on_demand : Dispatch::balanced;
    o.deterministic = seed % 7 == 0;
    o.lookahead = 1 + static_cast<int64_t>(seed % 4);
    o.first_step = seed % 2 == 0 ? 0 : 3;
    o.evaluate_every = seed % 4 == 0 ? 0 : 4;
    if (seed % 3 == 0 && o.workers > 1) o.gang = {.policy = SplitPolicy::always, .max_workers = o.workers};
    Ledger ledger = make(o);
    Simulation simulation(ledger, order_, o, seed);
    simulation.stop_after_moves = seed * 5;
    simulation.run();
    ends.insert(simulation.end_step());
    LedgerOptions stopped = o;
    stopped.end_step = simulation.end_step();
    if (o.gang.policy == SplitPolicy::never) expect_exactly_once(simulation, order_, stopped);
    EXPECT_EQ(static_cast<int64_t>(simulation.steps.size()), stopped.end_step - o.first_step);
    for (const int64_t evaluated : evaluated_steps(simulation)) {
      EXPECT_TRUE(evaluated < stopped.end_step || evaluated == o.first_step || evaluated % 4 == 0);
    }
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(ends.size(), 5U) << "most stops came at the same place";
}

TEST_F(LedgerTest, StopDuringTheLastEvaluationGivesItUp) {
  LedgerOptions o = options(1);
  o.end_step = 1;
  Ledger ledger = make(o);
  Lease lease = ledger.next(0);
  for (; lease.kind == LeaseKind::evaluate; lease = ledger.next(0)) ledger.group_evaluated({.unit = lease.unit});
  for (; lease.kind == LeaseKind::train; lease = ledger.next(0)) {
    ledger.unit_computed({.unit = lease.unit, .step = 0, .tokens = tokens_of(lease.sequences)});
  }
  ledger.server_completed_step({.server = 0, .step = 0});
  lease = ledger.next(0);
  ASSERT_EQ(lease.kind, LeaseKind::evaluate);
  EXPECT_EQ(ledger.stop(), 1);
  EXPECT_TRUE(ledger.finished());
  EXPECT_EQ(ledger.next(0).kind, LeaseKind::finish);
  ledger.group_evaluated({.unit = lease.unit});  // the worker was in the middle of it
  EXPECT_EQ(ledger.take_evaluations().size(), 1U) << "the one before training";
}

TEST_F(LedgerTest, MoreWorkersThanUnits) {
  for (const bool deterministic : {false, true}) {
    for (const Dispatch dispatch : {Dispatch::on_demand, Dispatch::static_}) {
      LedgerOptions o = options(40);
      o.unit_tokens = 1000;  // on demand: one unit a step
      o.dispatch = dispatch;
      o.deterministic = deterministic;
      o.end_step = 6;
      Ledger ledger = make(o, 1);
      Simulation simulation(ledger, order_, o, 5);
      simulation.run();
      expect_exactly_once(simulation, order_, o);
    }
  }
}

// Units, their numbers and their workers depend on nothing but the data order.
TEST_F(LedgerTest, DeterministicUnitsGoByNumber) {
  LedgerOptions o = options(3);
  o.deterministic = true;
  o.end_step = 8;
  std::map<int64_t, std::map<int64_t, std::pair<int64_t, std::vector<Sequence>>>> first;
  for (unsigned seed = 0; seed < 10; ++seed) {
    Ledger ledger = make(o);
    Simulation simulation(ledger, order_, o, seed);
    simulation.run();
    std::map<int64_t, std::map<int64_t, std::pair<int64_t, std::vector<Sequence>>>> seen;
    for (const auto& [step, leases] : simulation.leases_of_step) {
      for (const auto& [worker, lease] : leases) {
        EXPECT_EQ(worker, lease.order % 3);
        seen[step][lease.order] = {lease.unit, lease.sequences};
      }
      EXPECT_EQ(seen[step].rbegin()->first, static_cast<int64_t>(leases.size()) - 1) << "places are 0, 1, ...";
    }
    if (first.empty()) first = seen;
    for (const auto& [step, units] : seen) {
      for (const auto& [place, unit] : units) EXPECT_EQ(unit.second, first[step][place].second);
    }
  }
}

// Disjoint subsets of equal counts, whatever their lengths.
TEST_F(LedgerTest, StaticSubsetsAreFixed) {
  LedgerOptions o = options(4);
  o.dispatch = Dispatch::static_;
  o.end_step = 10;
  Ledger ledger = make(o);
  Simulation simulation(ledger, order_, o, 2);
  simulation.run();
  for (const auto& [index, leases] : simulation.leases_of_step) {
    std::vector<std::vector<Sequence>> of_worker(4);
    for (const auto& [worker, lease] : leases) {
      auto& own = of_worker[static_cast<size_t>(worker)];
      own.insert(own.end(), lease.sequences.begin(), lease.sequences.end());
    }
    const Step step = order_.step(index);
    for (size_t worker = 0; worker < 4; ++worker) {
      std::vector<Sequence> expected;
      for (size_t i = worker; i < step.sequences.size(); i += 4) expected.push_back(step.sequences[i]);
      EXPECT_EQ(keys_of(of_worker[worker]), keys_of(expected)) << "worker " << worker << ", step " << index;
    }
  }
}

// On demand, a worker that does nothing holds up nobody; who asks gets the next unit, longest sequences first.
TEST_F(LedgerTest, OnDemandWorkGoesToWhoAsks) {
  LedgerOptions o = options(2);
  o.lookahead = 1;
  Ledger ledger = make(o, 0);
  int64_t tokens = 0;
  int64_t longest = kMaxLength;
  while (true) {
    const Lease lease = ledger.next(1);
    if (lease.kind != LeaseKind::train) {
      EXPECT_EQ(lease.kind, LeaseKind::none);
      EXPECT_EQ(lease.step, 1) << "step 0 is given away, step 1 is beyond the lookahead";
      break;
    }
    EXPECT_LE(lease.sequences.front().length, longest);
    longest = lease.sequences.front().length;
    tokens += tokens_of(lease.sequences);
  }
  EXPECT_EQ(tokens, order_.step(0).target_tokens);
  EXPECT_EQ(ledger.next(0).kind, LeaseKind::none);
}

TEST_F(LedgerTest, ValidationComesBeforeTraining) {
  Ledger ledger = make(options(2), 2);
  const Lease first = ledger.next(0);
  const Lease second = ledger.next(0);
  EXPECT_EQ(first.kind, LeaseKind::evaluate);
  EXPECT_EQ(second.kind, LeaseKind::evaluate);
  EXPECT_NE(first.unit, second.unit);
  const Lease none = ledger.next(1);
  EXPECT_EQ(none.kind, LeaseKind::none);
  EXPECT_EQ(none.step, 0);
  ledger.group_evaluated({.unit = first.unit, .nats = 1.0, .tokens = 2});
  EXPECT_TRUE(ledger.take_evaluations().empty());
  ledger.group_evaluated({.unit = second.unit, .nats = 2.0, .tokens = 3});
  const std::vector<EvaluationResult> results = ledger.take_evaluations();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].nats, 3.0);
  EXPECT_EQ(results[0].tokens, 5);
  EXPECT_TRUE(ledger.take_evaluations().empty()) << "taken once";
  EXPECT_EQ(ledger.next(1).kind, LeaseKind::train);
}

// A run that is resumed at its end has only its validation left.
TEST_F(LedgerTest, NothingToTrain) {
  LedgerOptions o = options(1);
  o.first_step = o.end_step;
  Ledger ledger = make(o, 1);
  const Lease lease = ledger.next(0);
  ASSERT_EQ(lease.kind, LeaseKind::evaluate);
  EXPECT_FALSE(ledger.finished());
  ledger.group_evaluated({.unit = lease.unit, .nats = 1, .tokens = 1});
  EXPECT_TRUE(ledger.finished());
  EXPECT_EQ(ledger.next(0).kind, LeaseKind::finish);
  EXPECT_EQ(ledger.next(0).kind, LeaseKind::finish) << "as often as it asks";
}

UnitReport report_of(const Lease& lease) {
  return {.unit = lease.unit, .generation = lease.generation, .step = lease.step, .tokens = tokens_of(lease.sequences)};
}

TEST_F(LedgerTest, WrongReportsAreRefused) {
  Ledger ledger = make(options(2), 0);
  const Lease lease = ledger.next(0);
  ASSERT_EQ(lease.kind, LeaseKind::train);
  UnitReport unknown_unit = report_of(lease);
  unknown_unit.unit = 10'000;
  EXPECT_THROW(ledger.unit_computed(unknown_unit), Error);
  UnitReport not_open = report_of(lease);
  not_open.step = 5;
  EXPECT_THROW(ledger.unit_computed(not_open), Error);
  UnitReport not_leased = report_of(lease);
  ++not_leased.unit;
  EXPECT_THROW(ledger.unit_computed(not_leased), Error);
  ledger.unit_computed(report_of(lease));
  EXPECT_THROW(ledger.unit_computed(report_of(lease)), Error) << "twice";
}

TEST_F(LedgerTest, AGroupIsEvaluatedOnce) {
  Ledger ledger = make(options(2), 2);
  const Lease lease = ledger.next(0);
  EXPECT_THROW(ledger.group_evaluated({.unit = 1 - lease.unit}), Error) << "not leased yet";
  EXPECT_THROW(ledger.group_evaluated({.unit = 2}), Error) << "no such group";
  EXPECT_THROW(ledger.group_evaluated({.unit = -1}), Error);
  ledger.group_evaluated({.unit = lease.unit});
  EXPECT_THROW(ledger.group_evaluated({.unit = lease.unit}), Error);
}

/// Leases and computes all units of step 0.
void compute_step(Ledger& ledger, int64_t step) {
  for (Lease lease = ledger.next(0); lease.kind == LeaseKind::train && lease.step == step; lease = ledger.next(0)) {
    ledger.unit_computed(report_of(lease));
  }
}

StepComplete completion(int64_t server, int64_t step) { return {.server = server, .step = step}; }

TEST_F(LedgerTest, AStepNeedsAllItsServersOnce) {
  LedgerOptions o = options(1);
  o.completions = 2;
  o.lookahead = 1;
  Ledger ledger = make(o, 0);
  compute_step(ledger, 0);
  EXPECT_EQ(ledger.committed_steps(), 0);
  ledger.server_completed_step(completion(1, 0));
  EXPECT_EQ(ledger.committed_steps(), 0);
  EXPECT_THROW(ledger.server_completed_step(completion(1, 0)), Error) << "twice";
  EXPECT_THROW(ledger.server_completed_step(completion(2, 0)), Error) << "no such server";
  EXPECT_THROW(ledger.server_completed_step(completion(0, 3)), Error) << "a step that is not open";
  ledger.server_completed_step(completion(0, 0));
  EXPECT_EQ(ledger.committed_steps(), 1);
  EXPECT_THROW(ledger.server_completed_step(completion(0, 0)), Error) << "committed already";
}

// What a time-out names: servers that owe the oldest open step, whatever they have done of later ones.
TEST_F(LedgerTest, ServersBehindAreThoseThatOweTheOldestStep) {
  LedgerOptions o = options(1);
  o.completions = 3;
  o.lookahead = 2;
  Ledger ledger = make(o, 0);
  EXPECT_EQ(ledger.missing_completions(), std::vector<int64_t>{}) << "no step is open";
  compute_step(ledger, 0);  // leases a unit of step 1 to see the end of step 0
  EXPECT_EQ(ledger.missing_completions(), (std::vector<int64_t>{0, 1, 2}));
  ledger.server_completed_step(completion(1, 0));
  EXPECT_EQ(ledger.missing_completions(), (std::vector<int64_t>{0, 2}));
  ledger.server_completed_step(completion(0, 1));
  EXPECT_EQ(ledger.missing_completions(), (std::vector<int64_t>{0, 2})) << "step 1 does not matter yet";
  ledger.server_completed_step(completion(2, 0));
  ledger.server_completed_step(completion(0, 0));
  ASSERT_EQ(ledger.committed_steps(), 1);
  EXPECT_EQ(ledger.missing_completions(), (std::vector<int64_t>{1, 2})) << "of step 1, which server 0 has completed";
}

TEST_F(LedgerTest, MissingTokensAreNoticed) {
  LedgerOptions o = options(1);
  o.lookahead = 1;
  Ledger ledger = make(o, 0);
  bool first = true;
  for (Lease lease = ledger.next(0); lease.kind == LeaseKind::train; lease = ledger.next(0)) {
    UnitReport report = report_of(lease);
    if (std::exchange(first, false)) --report.tokens;
    ledger.unit_computed(report);
  }
  EXPECT_THROW(ledger.server_completed_step(completion(0, 0)), Error);
}

TEST(PackUnits, PacksLongestFirstWithinTheLimit) {
  std::vector<Sequence> sequences;
  for (int64_t d = 0; d < 50; ++d) sequences.push_back({.document = d, .begin = 0, .length = 1 + d * 13 % 37});
  sequences.push_back({.document = 50, .begin = 0, .length = 500});
  const std::vector<std::vector<Sequence>> units = pack_units(sequences, 64);
  std::vector<Sequence> all;
  for (const std::vector<Sequence>& unit : units) {
    ASSERT_FALSE(unit.empty());
    EXPECT_TRUE(unit.size() == 1 || tokens_of(unit) <= 64);
    all.insert(all.end(), unit.begin(), unit.end());
  }
  EXPECT_EQ(units.front(), (std::vector<Sequence>{{50, 0, 500}})) << "longer than a unit: alone";
  EXPECT_EQ(keys_of(all), keys_of(sequences));
  EXPECT_TRUE(
      std::is_sorted(all.begin(), all.end(), [](const Sequence& a, const Sequence& b) { return a.length > b.length; }));
  EXPECT_TRUE(pack_units({}, 64).empty());
}

}  // namespace
}  // namespace hat
