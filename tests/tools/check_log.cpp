// check_log <run>
//
// Whether every sequence of the run was trained exactly once in each of its epochs, by its gradient log (log.keep =
// all): of each step up to the newest checkpoint the pushes that count, of the attempt that counts, hold as many target
// tokens as that step's sequences have for every part of every block, and no unit twice (or, of rings, one sum of the
// whole step for every element: what went into it is not told); and the steps hold every sequence of an epoch once.
// (Server 0 hands each sequence of a step out in one unit, so units that are all there, each once, are sequences that
// are.) Exit codes: 0 so it is, 1 not, 2 cannot be read.
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hat/checkpoint/checkpoint.hpp"
#include "hat/checkpoint/gradient_log_reader.hpp"
#include "hat/core/error.hpp"
#include "hat/dataset/data_order.hpp"
#include "hat/gradient/shard_size.hpp"
#include "hat/server/replay.hpp"

namespace {

using hat::GradientLogReader;
using hat::Part;

struct NotOnce : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What the pushes of one step say of one part.
struct PartStep {
  int64_t tokens = 0;                                // of sums of some units
  int64_t whole_elements = 0;                        // in sums of the whole step
  std::set<int64_t> begins_of_whole;                 // where those begin
  std::multiset<std::pair<int64_t, int64_t>> units;  // (worker, unit): members of a gang push ranges of one
};

/// Pushes of all servers in the steps of one attempt that count, by step and part.
using Pushes = std::map<int64_t, std::map<int64_t, PartStep>>;

Pushes pushes_of(GradientLogReader& log, const GradientLogReader::Attempt& attempt, const hat::RunPlan& plan,
                 int64_t from, int64_t to, int64_t& count) {
  Pushes pushes;
  for (int64_t server = 0; server < attempt.header.servers; ++server) {
    for (const GradientLogReader::Push& push : log.pushes(attempt, server, from, to)) {
      const auto part = std::ranges::find_if(plan.shards.parts, [&](const Part& p) {
        return p.block == push.row.block && p.begin <= push.row.begin &&
               push.row.begin + push.row.count <= p.begin + p.count;
      });
      if (part == plan.shards.parts.end()) throw NotOnce("a push of elements that no part has");
      PartStep& of_part = pushes[push.row.step][part - plan.shards.parts.begin()];
      if (push.row.complete != 0) {
        of_part.whole_elements += push.row.count;
        if (!of_part.begins_of_whole.insert(push.row.begin).second && push.row.count > 0) {
          throw NotOnce(fmt::format("step {}: two sums of the whole step begin at one element", push.row.step));
        }
      } else {
        of_part.tokens += push.row.tokens;
        for (const int64_t unit : push.units) of_part.units.emplace(push.row.worker, unit);
      }
      ++count;
    }
  }
  return pushes;
}

void check_step(int64_t step, int64_t tokens, const std::map<int64_t, PartStep>& parts, const hat::RunPlan& plan) {
  for (size_t p = 0; p < plan.shards.parts.size(); ++p) {
    const Part& place = plan.shards.parts[p];
    const std::string where =
        fmt::format("step {}, block {}", step, plan.layout.blocks[static_cast<size_t>(place.block)].name);
    const auto found = parts.find(static_cast<int64_t>(p));
    if (found == parts.end()) throw NotOnce(where + ": no push");
    const PartStep& part = found->second;
    if (part.whole_elements > 0) {
      if (part.whole_elements != place.count || part.tokens > 0)
        throw NotOnce(where + ": not one sum of the whole step");
      continue;
    }
    if (part.tokens != tokens) {
      throw NotOnce(fmt::format("{}: {} target tokens were pushed, the step has {}", where, part.tokens, tokens));
    }
    const std::set<std::pair<int64_t, int64_t>> different(part.units.begin(), part.units.end());
    if (different.size() != part.units.size()) throw NotOnce(where + ": a unit was pushed twice");
  }
}

/// Each sequence of an epoch, by its place in the dataset.
using Epoch = std::set<std::tuple<int64_t, int64_t, int64_t>>;

int check(const std::string& run) {
  const int64_t end = hat::CheckpointReader(run).state().step;
  GradientLogReader log(run);
  for (const std::string& problem : log.problems()) fmt::print("{}\n", problem);
  if (log.attempts().empty()) throw hat::InputError(run, "log", "is missing");
  const hat::LogAttempt& first = log.attempts().front().header;
  const hat::Dataset dataset(first.dataset_path);
  const hat::RunPlan first_plan = hat::plan_of(first);
  hat::DataOrder order(dataset, first_plan.deck, hat::piece_tokens(first_plan.deck));

  std::map<int64_t, Epoch> epochs;
  int64_t pushes = 0;
  int64_t sequences = 0;
  for (int64_t step = 0; step < end;) {
    const GradientLogReader::Attempt* attempt = log.attempt_of(step);
    if (attempt == nullptr) throw NotOnce(fmt::format("step {}: no attempt has it", step));
    const hat::RunPlan plan = hat::plan_of(attempt->header);
    const int64_t stop = std::min(end, log.end_of(*attempt));
    Pushes by_step = pushes_of(log, *attempt, plan, step, stop, pushes);
    for (; step < stop; ++step) {
      const hat::Step& wanted = order.step(step);
      check_step(step, wanted.target_tokens, by_step[step], plan);
      for (const hat::Sequence& sequence : wanted.sequences) {
        if (!epochs[wanted.epoch].emplace(sequence.document, sequence.begin, sequence.length).second) {
          throw NotOnce(fmt::format("step {}: a sequence of epoch {} comes twice", step, wanted.epoch));
        }
        ++sequences;
      }
    }
  }
  for (const auto& [epoch, seen] : epochs) {
    const bool is_whole = epochs.contains(epoch + 1) || order.step(end).epoch > epoch;
    if (is_whole && seen.size() != epochs.begin()->second.size()) {
      throw NotOnce(fmt::format("epoch {} has {} sequences, the first has {}", epoch, seen.size(),
                                epochs.begin()->second.size()));
    }
  }
  fmt::print(
      "{} steps, {} sequences in {} epochs, {} pushes in {} attempts: every sequence exactly once in each epoch\n", end,
      sequences, epochs.size(), pushes, log.attempts().size());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw hat::InputError("command line", "", "a run folder is needed");
    return check(argv[1]);
  } catch (const NotOnce& error) {
    fmt::print("not exactly once: {}\n", error.what());
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "check_log: {}\n", error.what());
    return 2;
  }
}
