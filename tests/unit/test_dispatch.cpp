#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <queue>

#include "hat/commands/policy_simulation.hpp"
#include "hat/core/random.hpp"
#include "hat/dataset/dataset_writer.hpp"
#include "hat/ledger/ledger.hpp"
#include "io_support.hpp"

// The ledger in virtual time: workers that compute for as long as a cost says, and ask as a worker does, in the middle
// of the forward pass. How much of the workers' time is used?

namespace hat {
namespace {

constexpr double kAreaWeight = 1.0 / 13500;  // GPT-2 124M

double cost_of(const Sequence& sequence) {
  const UnitSize size = size_of(sequence);
  return size.tokens + kAreaWeight * size.area;
}
double cost_of(const std::vector<Sequence>& sequences) {
  double cost = 0;
  for (const Sequence& sequence : sequences) cost += cost_of(sequence);
  return cost;
}

int64_t tokens_of(const std::vector<Sequence>& sequences) {
  int64_t tokens = 0;
  for (const Sequence& sequence : sequences) tokens += sequence.length;
  return tokens;
}

struct Cluster {
  std::vector<double> speeds;  // by worker
  int64_t staleness = 1;
  bool unbounded = false;  // nobody waits, whatever `staleness` says
  int64_t sync_steps = 0;
  int64_t steps = 60;
  double stall_s = 0;      // worker 0 stops so long in every 20th of its units
  double jitter = 0;       // standard deviation of a unit's time over its mean, which nobody can foresee
  int64_t lie = 0;         // number of the unit of worker 0 that it says took a thousandth of its time; 0: none
  int64_t slow_steps = 0;  // in so many first steps members of gangs wait for each other
  double gang_wait_s = 0;  // for so long per token that the busiest of them sends or gets
  // A block in the middle of the network has S = 0: a sixth of a unit's time is before it in the forward pass, a third
  // behind it in the backward pass.
  bool barrier = false;

  /// The step that must be done before units of `step` begin; negative: none.
  int64_t needed(int64_t step) const { return unbounded ? -1 : oldest_late_version(step, staleness, sync_steps) - 1; }
};

double busiest_tokens(const std::vector<GangMember>& gang) {
  int64_t most = 0;
  int64_t earlier = 0;
  for (size_t member = 0; member < gang.size(); ++member) {
    most = std::max({most, earlier, gang[member].length * static_cast<int64_t>(gang.size() - 1 - member)});
    earlier += gang[member].length;
  }
  return static_cast<double>(most);
}

/// Virtual time until all steps are done.
class VirtualRun {
 public:
  VirtualRun(DataOrder& order, const Cluster& cluster, LedgerOptions options)
      : cluster_(cluster), workers_(cluster.speeds.size()), done_(static_cast<size_t>(cluster.steps), -1) {
    options.workers = static_cast<int>(cluster.speeds.size());
    options.end_step = cluster.steps;
    options.staleness = cluster.unbounded ? kUnbounded : cluster.staleness;
    options.sync_steps = cluster.sync_steps;
    options.lookahead = cluster.unbounded ? 64 : cluster.staleness + 2;
    options.area_weight = kAreaWeight;
    ledger_.emplace(order, std::vector<std::vector<Sequence>>{}, options);
    for (int64_t step = 0; step < cluster.steps; ++step) tokens_.push_back(order.step(step).target_tokens);
    free_tokens_ = behind_barrier_ = tokens_;
  }

  double run() {
    for (size_t w = 0; w < workers_.size(); ++w) ask_idle(w);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      event.act();
      for (size_t w = 0; w < workers_.size(); ++w) {
        if (workers_[w].idle) ask_idle(w);
      }
    }
    EXPECT_TRUE(ledger_->finished());
    return now_;
  }
  const Ledger& ledger() const { return *ledger_; }
  double done_at(int64_t step) const { return done_[static_cast<size_t>(step)]; }
  /// All of them, with what the ledger thought of them when it gave them out.
  struct Given {
    size_t worker;
    Lease lease;
    double predicted_s;  // negative: nothing was known yet
    bool step_has_more;
  };
  const std::vector<Given>& given() const { return given_; }

 private:
  struct Event {
    double at;
    int64_t number;
    std::function<void()> act;
    bool operator<(const Event& other) const { return at != other.at ? at > other.at : number > other.number; }
  };
  struct Worker {
    bool idle = true;
    bool computing = false;
    std::optional<Lease> current;
    std::optional<Lease> next;
    int64_t units = 0;
    int64_t step = 0;        // of the newest lease
    int64_t gang_unit = -1;  // its last unit of a gang
    double waited_s = 0;     // of its current unit
  };

  void at(double time, std::function<void()> act) { events_.push({time, number_++, std::move(act)}); }

  Lease ask(size_t w) {
    const UnitCostModel& costs = ledger_->cost_model();
    Lease lease = ledger_->next(static_cast<int64_t>(w), now_);
    if (lease.kind != LeaseKind::train) return lease;
    // What rules out that two workers ever wait for each other.
    Worker& worker = workers_[w];
    EXPECT_GE(lease.step, worker.step) << "steps decrease";
    worker.step = lease.step;
    if (!lease.gang.empty()) {
      EXPECT_GT(lease.unit, worker.gang_unit) << "gangs do not come to all in one order";
      worker.gang_unit = lease.unit;
    }
    const bool known = costs.knows_seconds();
    const double seconds = costs.seconds(static_cast<int64_t>(w), size_of(lease.sequences));
    int64_t& left = free_tokens_[static_cast<size_t>(lease.step)];
    left -= tokens_of(lease.sequences);
    given_.push_back({.worker = w, .lease = lease, .predicted_s = known ? seconds : -1.0, .step_has_more = left > 0});
    return lease;
  }

  void ask_idle(size_t w) {
    Worker& worker = workers_[w];
    const Lease lease = ask(w);
    worker.idle = lease.kind != LeaseKind::finish;
    if (lease.kind != LeaseKind::train) return;
    worker.idle = false;
    worker.current = lease;
    begin(w);
  }

  // A unit begins once the versions it needs are there.
  void begin(size_t w) {
    Worker& worker = workers_[w];
    const int64_t needed = cluster_.needed(worker.current->step);
    if (needed >= 0 && done_[static_cast<size_t>(needed)] < 0) {
      waiting_[needed].push_back(w);
      return;
    }
    // Members of a gang compute once all are there.
    if (!worker.current->gang.empty()) {
      const Sequence& range = worker.current->sequences.front();
      std::vector<size_t>& there = gangs_[{range.document, range.begin - range.earlier}];
      there.push_back(w);
      if (there.size() < worker.current->gang.size()) return;
      for (const size_t member : std::exchange(there, {})) compute(member);
      return;
    }
    compute(w);
  }

  void compute(size_t w) {
    Worker& worker = workers_[w];
    double seconds = cost_of(worker.current->sequences) / cluster_.speeds[w];
    seconds *= random_log_normal(cluster_.jitter, 3, w, static_cast<uint64_t>(++worker.units));
    if (w == 0 && worker.units % 20 == 0) seconds += cluster_.stall_s;
    const bool waits = !worker.current->gang.empty() && worker.current->step < cluster_.slow_steps;
    worker.waited_s = waits ? cluster_.gang_wait_s * busiest_tokens(worker.current->gang) : 0;
    seconds += worker.waited_s;
    at(now_ + seconds / 6, [this, w, seconds, start = now_] {
      workers_[w].next = ask(w);
      come_to_barrier(w, start, seconds);
    });
  }

  // In the forward pass.
  void come_to_barrier(size_t w, double start, double seconds) {
    const int64_t before = workers_[w].current->step - 1;
    if (cluster_.barrier && before >= 0 && behind_barrier_[static_cast<size_t>(before)] > 0) {
      at_barrier_[before].emplace_back(w, seconds);
      return;
    }
    if (cluster_.barrier) at(start + seconds * 2 / 3, [this, w] { leave_barrier_block(w); });
    at(start + seconds, [this, w, seconds] { end(w, seconds); });
  }

  // In the backward pass.
  void leave_barrier_block(size_t w) {
    const Lease& lease = *workers_[w].current;
    int64_t& left = behind_barrier_[static_cast<size_t>(lease.step)];
    left -= tokens_of(lease.sequences);
    if (left > 0) return;
    for (const auto& [waiting, seconds] : std::exchange(at_barrier_[lease.step], {})) {
      come_to_barrier(waiting, now_ - seconds / 6, seconds);
    }
  }

  void end(size_t w, double seconds) {
    Worker& worker = workers_[w];
    const Lease lease = *std::exchange(worker.current, std::nullopt);
    const int64_t tokens = tokens_of(lease.sequences);
    const bool lies = w == 0 && worker.units == cluster_.lie;
    ledger_->unit_computed({.worker = static_cast<int64_t>(w),
                            .unit = lease.unit,
                            .generation = 1,
                            .step = lease.step,
                            .tokens = tokens,
                            .seconds = (seconds - worker.waited_s) / (lies ? 1000 : 1),
                            .elapsed_s = seconds},
                           now_);
    const auto step = static_cast<size_t>(lease.step);
    if ((tokens_[step] -= tokens) == 0) complete_.push(-lease.step);
    while (!complete_.empty() && -complete_.top() == next_done_) {
      complete_.pop();
      finish_step(next_done_++);
    }
    if (worker.next->kind == LeaseKind::train) {
      worker.current = std::exchange(worker.next, std::nullopt);
      begin(w);
    } else {
      worker.idle = true;
    }
  }

  void finish_step(int64_t step) {
    done_[static_cast<size_t>(step)] = now_;
    ledger_->server_completed_step({.server = 0, .step = step}, now_);
    for (const size_t w : waiting_[step]) begin(w);
  }

  Cluster cluster_;
  std::optional<Ledger> ledger_;
  std::vector<Worker> workers_;
  std::vector<double> done_;
  std::vector<int64_t> tokens_;          // by step: not computed
  std::vector<int64_t> free_tokens_;     // not given out
  std::vector<int64_t> behind_barrier_;  // whose backward pass has not left the barrier block
  std::map<int64_t, std::vector<std::pair<size_t, double>>> at_barrier_;  // wait for that step's block
  std::vector<Given> given_;
  std::map<std::pair<int64_t, int64_t>, std::vector<size_t>> gangs_;  // by document and begin: members that are there
  std::priority_queue<int64_t> complete_;
  int64_t next_done_ = 0;
  std::map<int64_t, std::vector<size_t>> waiting_;
  std::priority_queue<Event> events_;
  int64_t number_ = 0;
  double now_ = 0;
};

/// The bound: whoever is free takes the longest sequence at that very moment.
double greedy_time(DataOrder& order, const Cluster& cluster) {
  std::vector<double> done;
  std::vector<double> free(cluster.speeds.size(), 0.0);
  uint64_t draws = 0;
  for (int64_t step = 0; step < cluster.steps; ++step) {
    const int64_t needed = cluster.needed(step);
    const double ready = needed >= 0 ? done[static_cast<size_t>(needed)] : 0.0;
    std::vector<double> costs;
    for (const Sequence& sequence : order.step(step).sequences) costs.push_back(cost_of(sequence));
    std::ranges::sort(costs, std::greater<>());
    for (double& cost : costs) cost *= random_log_normal(cluster.jitter, 4, 0, draws++);
    double end = done.empty() ? 0.0 : done.back();
    for (const double cost : costs) {
      const auto first = std::ranges::min_element(free);
      *first = std::max(*first, ready) + cost / cluster.speeds[static_cast<size_t>(first - free.begin())];
      end = std::max(end, *first);
    }
    done.push_back(end);
  }
  return done.back();
}

class DispatchTest : public ::testing::Test {
 protected:
  /// 62 / 28 / 10 % of lengths in 32-511 / 512-2047 / 2048-8192.
  DispatchTest() : dataset_(make_dataset(folder_ / "d.h5")) {}
  static Dataset make_dataset(const std::filesystem::path& path) {
    const auto tokenizer = make_byte_tokenizer();
    DatasetWriter writer(path, *tokenizer, {});
    const auto below = [](uint64_t d, uint64_t n) { return static_cast<size_t>(random_below(1, 2, d, n)); };
    for (uint64_t d = 0; d < 6000; ++d) {
      const double u = random_uniform(1, 1, d);
      const size_t length = u < 0.62 ? 32 + below(d, 480) : u < 0.9 ? 512 + below(d, 1536) : 2048 + below(d, 6145);
      writer.add_text(Split::train, std::string(length - 1, 'x'));
      writer.end_document(Split::train);
    }
    writer.add_text(Split::validation, "x");
    writer.end_document(Split::validation);
    writer.finish();
    return Dataset(path);
  }
  DataOrder order(int64_t sequences_per_worker) const {
    constexpr int64_t kMeanLength = 1038;
    return {dataset_, 1, 16 * sequences_per_worker * kMeanLength, 8192, LongPolicy::cut};
  }
  double total_cost(DataOrder& order, int64_t steps) const {
    double sum = 0;
    for (int64_t step = 0; step < steps; ++step) sum += cost_of(order.step(step).sequences);
    return sum;
  }
  double speed_sum(const Cluster& cluster) const {
    return std::accumulate(cluster.speeds.begin(), cluster.speeds.end(), 0.0);
  }

  test::TemporaryFolder folder_;
  Dataset dataset_;
};

LedgerOptions on_demand() { return {.dispatch = Dispatch::on_demand, .unit_tokens = 4096, .max_delay_s = 2000}; }

// Binding the next unit while one computes, and packing short sequences, costs at most 6 % against the bound.
TEST_F(DispatchTest, OnDemandIsNearTheGreedyBound) {
  for (const int64_t sequences : {1, 2, 4, 8}) {
    for (const int64_t staleness : {0, 1, 2, 4}) {
      DataOrder steps = order(sequences);
      const Cluster cluster{.speeds = std::vector<double>(16, 1.0), .staleness = staleness};
      const double bound = greedy_time(steps, cluster);
      VirtualRun run(steps, cluster, on_demand());
      const double time = run.run();
      const double work = total_cost(steps, cluster.steps) / 16;
      RecordProperty("utilization", std::to_string(work / time));
      std::printf("%ld sequences per worker, S = %ld: %.1f %% used, bound %.1f %%\n", static_cast<long>(sequences),
                  static_cast<long>(staleness), 100 * work / time, 100 * work / bound);
      EXPECT_LE(time, 1.06 * bound) << sequences << " sequences per worker, S = " << staleness;
      EXPECT_LT(run.ledger().cost_model().relative_error(3), 0.02);
    }
  }
}

/// The first of these lengths hold a step up if no other worker helps (facts of the design: 17, 27, 47, 84 %).
struct GangCase {
  int64_t sequences;
  double synchronous;   // share of the workers' time that must be used with S = 0,
  double with_barrier;  // and with S = 1 and a barrier in the middle
};
constexpr GangCase kGangCases[] = {{1, 0.78, 0.84}, {2, 0.82, 0.86}, {4, 0.90, 0.91}, {8, 0.94, 0.97}};

TEST_F(DispatchTest, GangsEndTheWaitForTheLongest) {
  for (const GangCase& use : kGangCases) {
    for (const int64_t staleness : {0, 1, 2}) {
      for (const bool barrier : {false, true}) {
        DataOrder steps = order(use.sequences);
        const Cluster cluster{.speeds = std::vector<double>(16, 1.0), .staleness = staleness, .barrier = barrier};
        LedgerOptions options = on_demand();
        options.before_barrier = barrier ? 1.0 / 6 : 1;
        const double never = VirtualRun(steps, cluster, options).run();
        options.gang = {.policy = SplitPolicy::automatic, .max_workers = 16};
        VirtualRun run(steps, cluster, options);
        const double time = run.run();
        const double used = total_cost(steps, cluster.steps) / 16 / time;
        std::printf("%ld sequences per worker, S = %ld%s: %.1f %% used, %.2f of the time without gangs\n",
                    static_cast<long>(use.sequences), static_cast<long>(staleness), barrier ? ", barrier" : "",
                    100 * used, time / never);
        // With S = 2, which nobody asked for, eight of the sixty steps go without gangs, to see what that is worth.
        const double least = staleness == 0 ? use.synchronous : use.with_barrier - (staleness == 2 ? 0.01 : 0);
        EXPECT_GE(used, least) << use.sequences << " " << staleness;
        EXPECT_LE(time, 1.02 * never) << use.sequences << " " << staleness;
        EXPECT_LT(run.ledger().gang_planner().relative_error(), 0.02);
        Cluster shaky = cluster;
        shaky.jitter = 0.3;
        VirtualRun(steps, shaky, options).run();  // comes to its end
      }
    }
  }
}

/// Gangs of the steps from `first` on, but for those of two workers.
int64_t large_gangs(const VirtualRun& run, int64_t first) {
  return std::ranges::count_if(run.given(), [&](const VirtualRun::Given& given) {
    return given.lease.step >= first && given.lease.gang.size() > 2;
  });
}

// Links that seemed slow when they were measured, and still did to the first gangs: the plans do without. Checks find
// out when they are not (any more), and cost nearly nothing where they really are.
TEST_F(DispatchTest, PlansWithoutGangsAreChecked) {
  for (const int64_t sequences : {1, 2}) {
    for (const int64_t staleness : {0, 1}) {
      DataOrder steps = order(sequences);
      Cluster cluster{.speeds = std::vector<double>(16, 1.0), .staleness = staleness, .steps = 100};
      LedgerOptions options = on_demand();
      const auto second_half = [](const VirtualRun& run) { return run.done_at(99) - run.done_at(49); };
      VirtualRun never(steps, cluster, options);
      never.run();
      options.gang = {.policy = SplitPolicy::automatic, .max_workers = 16, .forward_bytes = 1, .backward_bytes = 1};
      options.gang.links.inside = {.bytes_per_s = 2, .latency_s = 1};
      cluster.gang_wait_s = 10;
      cluster.slow_steps = 5;
      VirtualRun fast(steps, cluster, options);
      fast.run();
      EXPECT_GT(large_gangs(fast, 70), 0) << sequences << ' ' << staleness;
      EXPECT_LT(second_half(fast), 0.8 * second_half(never)) << sequences << ' ' << staleness;
      cluster.slow_steps = cluster.steps;
      VirtualRun slow(steps, cluster, options);
      slow.run();
      EXPECT_EQ(slow.ledger().split_trial().unsplit_steps(), 0);  // its plans had no gangs: nothing to compare
      EXPECT_EQ(large_gangs(slow, 10), 0);
      EXPECT_LE(second_half(slow), 1.015 * second_half(never)) << sequences << ' ' << staleness;
    }
  }
}

// Slow workers get shorter ranges: one at half speed costs no more than its share.
TEST_F(DispatchTest, GangsWithASlowWorker) {
  DataOrder steps = order(2);
  Cluster cluster{.speeds = std::vector<double>(16, 1.0), .staleness = 0};
  cluster.speeds[3] = 0.5;
  LedgerOptions options = on_demand();
  options.gang = {.policy = SplitPolicy::automatic, .max_workers = 16};
  const double time = VirtualRun(steps, cluster, options).run();
  EXPECT_LE(total_cost(steps, cluster.steps), time * speed_sum(cluster));
  EXPECT_GE(total_cost(steps, cluster.steps), 0.82 * time * speed_sum(cluster));
}

// Fixed policies split, too; deterministic units do not depend on the clock.
TEST_F(DispatchTest, GangsOfFixedPolicies) {
  for (const Dispatch dispatch : {Dispatch::static_, Dispatch::sorted, Dispatch::balanced, Dispatch::on_demand}) {
    std::vector<std::vector<std::vector<Sequence>>> units;
    for (const double jitter : {0.0, 0.3}) {
      DataOrder steps = order(2);
      const Cluster cluster{.speeds = std::vector<double>(16, 1.0), .staleness = 0, .steps = 20, .jitter = jitter};
      LedgerOptions options = on_demand();
      options.dispatch = dispatch;
      options.deterministic = dispatch == Dispatch::on_demand;
      const double never = VirtualRun(steps, cluster, options).run();
      options.gang = {.policy = SplitPolicy::automatic, .max_workers = 16};
      VirtualRun run(steps, cluster, options);
      EXPECT_LT(run.run(), 0.7 * never) << static_cast<int>(dispatch);
      units.emplace_back();
      std::map<int64_t, std::vector<Sequence>> by_number;
      for (const VirtualRun::Given& given : run.given()) by_number[given.lease.unit] = given.lease.sequences;
      for (auto& [number, sequences] : by_number) units.back().push_back(std::move(sequences));
    }
    if (dispatch == Dispatch::on_demand) {
      EXPECT_TRUE(units[0] == units[1]);
    }
  }
}

// Policies that fix everything in advance, in the order of what they can give.
TEST_F(DispatchTest, FixedPolicies) {
  std::map<Dispatch, double> time;
  for (const Dispatch dispatch : {Dispatch::static_, Dispatch::sorted, Dispatch::balanced}) {
    DataOrder steps = order(8);
    const Cluster cluster{.speeds = std::vector<double>(16, 1.0), .staleness = 0};
    LedgerOptions options = on_demand();
    options.dispatch = dispatch;
    time[dispatch] = VirtualRun(steps, cluster, options).run();
    std::printf("policy %d: %.1f %% used\n", static_cast<int>(dispatch),
                100 * total_cost(steps, cluster.steps) / 16 / time[dispatch]);
  }
  EXPECT_LT(time[Dispatch::sorted], time[Dispatch::static_]);
  EXPECT_LT(time[Dispatch::balanced], 0.97 * time[Dispatch::sorted]);
}

TEST_F(DispatchTest, NobodyWaitsUnbounded) {
  for (const int64_t sequences : {1, 2, 4, 8}) {
    DataOrder steps = order(sequences);
    Cluster cluster{.speeds = std::vector<double>(16, 1.0), .staleness = 0, .unbounded = true};
    EXPECT_LE(VirtualRun(steps, cluster, on_demand()).run(), 1.03 * greedy_time(steps, cluster)) << sequences;
    cluster.speeds[5] = 0.5;
    EXPECT_LE(VirtualRun(steps, cluster, on_demand()).run(), 1.1 * greedy_time(steps, cluster)) << sequences;
  }
}

TEST_F(DispatchTest, SynchronousStepsBeforeLateOnes) {
  for (const int64_t staleness : {1, 2, 4}) {
    DataOrder steps = order(2);
    const Cluster cluster{.speeds = std::vector<double>(16, 1.0), .staleness = staleness, .sync_steps = 30};
    EXPECT_LE(VirtualRun(steps, cluster, on_demand()).run(), 1.03 * greedy_time(steps, cluster)) << staleness;
  }
}

// Times that cannot be foreseen: a worker that was sent on to the next step does not come back, so plans must not rely
// on predictions more than these deserve.
TEST_F(DispatchTest, UnforeseenTimes) {
  for (const int64_t sequences : {4, 8}) {
    DataOrder steps = order(sequences);
    Cluster cluster{.speeds = std::vector<double>(16, 1.0), .staleness = 1};
    for (const double jitter : {0.1, 0.3, 0.6}) {
      cluster.jitter = jitter;
      const double bound = greedy_time(steps, cluster);
      const double time = VirtualRun(steps, cluster, on_demand()).run();
      std::printf("%ld sequences per worker, jitter %.1f: %.1f %% of the bound's time\n", static_cast<long>(sequences),
                  jitter, 100 * time / bound);
      EXPECT_LE(time, (1 + 0.3 * jitter) * bound);
    }
  }
}

// One worker at half speed, and one that stalls: the others take its work.
TEST_F(DispatchTest, SlowAndStallingWorkers) {
  DataOrder steps = order(8);
  Cluster cluster{.speeds = std::vector<double>(16, 1.0), .staleness = 1};
  cluster.speeds[5] = 0.5;
  const double time = VirtualRun(steps, cluster, on_demand()).run();
  EXPECT_LE(time, 1.05 * total_cost(steps, cluster.steps) / speed_sum(cluster));
  cluster.speeds[5] = 1.0;
  cluster.stall_s = 4000;
  const double stalled = VirtualRun(steps, cluster, on_demand()).run();
  std::printf("half speed: %.1f %%, stalls: %.1f %% of the time the summed speeds allow\n",
              100 * time * 15.5 / total_cost(steps, cluster.steps),
              100 * stalled * 16 / total_cost(steps, cluster.steps));
  EXPECT_LE(stalled, 1.05 * total_cost(steps, cluster.steps) / 16);
}

// A barrier block of the middle beside blocks that are S versions late.
TEST_F(DispatchTest, ABarrierInTheMiddle) {
  for (const int64_t sequences : {1, 2, 4, 8}) {
    for (const int64_t staleness : {1, 2, 4}) {
      DataOrder steps = order(sequences);
      const Cluster cluster{.speeds = std::vector<double>(16, 1.0), .staleness = staleness, .barrier = true};
      StepCosts costs;
      for (int64_t step = 0; step < cluster.steps; ++step) {
        costs.emplace_back();
        for (const Sequence& sequence : steps.step(step).sequences) costs.back().push_back(cost_of(sequence));
      }
      const double simulated = on_demand_seconds(costs, cluster.speeds, staleness, 0.5);
      LedgerOptions options = on_demand();
      options.before_barrier = 1.0 / 6;
      const double time = VirtualRun(steps, cluster, options).run();
      std::printf("%ld sequences per worker, S = %ld, barrier: %.1f %% of the simulation's time, %.1f %% used\n",
                  static_cast<long>(sequences), static_cast<long>(staleness), 100 * time / simulated,
                  100 * total_cost(steps, cluster.steps) / 16 / time);
      EXPECT_LE(time, 1.03 * simulated) << sequences << " sequences per worker, S = " << staleness;
    }
  }
}

// What units promise, whoever asks when.
TEST_F(DispatchTest, UnitsKeepTheirBounds) {
  DataOrder steps = order(8);
  LedgerOptions options = on_demand();
  options.max_delay_s = 1500;
  Cluster cluster{.speeds = std::vector<double>(16, 1.0), .staleness = 1, .jitter = 0.1};
  cluster.speeds[3] = 0.5;
  VirtualRun run(steps, cluster, options);
  run.run();
  int64_t short_units = 0;
  for (const VirtualRun::Given& given : run.given()) {
    const std::vector<Sequence>& unit = given.lease.sequences;
    const int64_t tokens = tokens_of(unit);
    if (tokens < options.least_tokens && given.step_has_more) ++short_units;
    if (unit.size() == 1) continue;
    // A longer sequence may have a rest with it that is too small for a unit of its own.
    const double rest = cost_of(unit) - cost_of(unit.front());
    const bool takes_a_rest = rest <= static_cast<double>(options.least_tokens) + cost_of(unit.back()) / 2;
    if (tokens > options.least_tokens + unit.back().length && !takes_a_rest) {
      EXPECT_LE(given.predicted_s, options.max_delay_s) << tokens << " tokens on worker " << given.worker;
    }
  }
  // What is left for it in the plan may be less, and what others were to have still be free when it gets that.
  EXPECT_LE(short_units, std::ssize(run.given()) / 100);
}

TEST_F(DispatchTest, OneWorkersUnitsDoNotDependOnTheClock) {
  std::vector<std::vector<std::vector<Sequence>>> units;
  for (const double jitter : {0.0, 0.5}) {
    DataOrder steps = order(1);
    LedgerOptions options = on_demand();
    options.max_delay_s = 1e9;
    VirtualRun run(steps, {.speeds = {jitter > 0 ? 0.3 : 1.0}, .steps = 20, .jitter = jitter}, options);
    run.run();
    units.emplace_back();
    for (const VirtualRun::Given& given : run.given()) {
      units.back().push_back(given.lease.sequences);
      EXPECT_GE(tokens_of(given.lease.sequences), given.step_has_more ? options.least_tokens : 1);
    }
  }
  EXPECT_TRUE(units[0] == units[1]);
}

// Seconds that are wrong once, the first that count or later ones, cost little: nobody is given what others could do.
TEST_F(DispatchTest, AWorkerThatSeemsQuickDoesNotTakeAll) {
  for (const int64_t sequences : {2, 8}) {
    DataOrder steps = order(sequences);
    Cluster cluster{.speeds = std::vector<double>(16, 1.0), .staleness = 1};
    const double honest = VirtualRun(steps, cluster, on_demand()).run();
    for (const int64_t lie : {2, 3, 15}) {
      cluster.lie = lie;
      VirtualRun run(steps, cluster, on_demand());
      const double time = run.run();
      std::vector<double> work(16, 0.0);
      for (const VirtualRun::Given& given : run.given()) work[given.worker] += cost_of(given.lease.sequences);
      std::printf("%ld sequences per worker, unit %ld reported wrongly: %.1f %% of the time, %.1f %% of a share\n",
                  static_cast<long>(sequences), static_cast<long>(lie), 100 * time / honest,
                  1600 * work[0] / total_cost(steps, cluster.steps));
      EXPECT_LE(time, 1.05 * honest) << "unit " << lie;
      // Of two sequences a step a long one more or less is chance; whoever takes all has sixteen shares.
      EXPECT_LE(work[0], (sequences > 2 ? 1.3 : 2.0) * total_cost(steps, cluster.steps) / 16);
    }
  }
}

}  // namespace
}  // namespace hat
