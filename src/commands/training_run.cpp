#include "commands/training_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

#include "commands/all_ranks.hpp"
#include "commands/device_choice.hpp"
#include "commands/recovery.hpp"
#include "commands/run_deadline.hpp"
#include "commands/run_description.hpp"
#include "commands/run_folder.hpp"
#include "commands/run_roles.hpp"
#include "commands/run_setup.hpp"
#include "hat/checkpoint/gradient_log_reader.hpp"
#include "hat/comm/mpi_environment.hpp"
#include "hat/core/fault.hpp"
#include "hat/core/stop_signal.hpp"
#include "hat/core/text.hpp"

namespace hat {

namespace {

/// Where the reason goes once there is a run folder. Returns the exit code.
ExitCode tell_failure(const std::filesystem::path& run, int rank, const std::string& line, const std::string& note) {
  if (may_tell_failure(run, rank)) {
    fmt::print(stderr, "hat: {}{}\n", line, note);
    std::fflush(stderr);
    note_failure(run, line);
  }
  return ExitCode::failure;
}

/// Before there is a run folder: whether some rank has been asked to stop. Collective. The first one says so.
bool is_stopped(const Communicator& world) {
  const int64_t priority = stop_signal() == 0 ? 0 : world.size() - world.rank();
  const int64_t first = world.all_reduce_max(priority);
  if (first > 0 && priority == first) {
    fmt::print("stopped before the run began, nothing was written: {} on rank {}\n", signal_name(stop_signal()),
               world.rank());
  }
  return first > 0;
}

/// Number of this start in the gradient log. Without a payload a log of an earlier start still needs to be told that
/// its steps are over.
int64_t log_attempt(const Deck& deck) {
  const int64_t next = next_log_attempt(deck.output);
  return deck.log.payload == LogPayload::none && next == 1 ? 0 : next;
}

/// What all ranks have to see alike, or each would train something else.
void check_same_deck(const Communicator& world, const std::string& deck_text, const std::string& first_deck) {
  if (deck_text == first_deck) return;
  throw InputError(
      "deck", "", fmt::format("rank {} has other settings than rank 0 (deck file or HAT_* environment)", world.rank()));
}

/// Looked at before anything else that is wrong with the folder: what a process is writing is not there yet.
/// Collective.
ExitCode check_nobody_trains_in(const Communicator& world, const std::string& run) {
  return on_all_ranks(world, [&] {
    if (world.rank() == 0) check_not_held(run);
  });
}

/// On rank 0, of a run that is to be continued: where that will be, and whether this deck and data may. Refuses before
/// anything is written. The lock is held from here on, so that what was found stays as it is.
RecoveryPlan find_continuation(RunSetup& setup) {
  const std::filesystem::path run = setup.plan.deck.output;
  if (!std::filesystem::exists(run)) throw InputError(run.string(), "resume", "there is no such run to continue");
  if (has_not_begun(run)) {
    fmt::print("{}: the run had not begun; it begins now\n", run.string());
    return {};
  }
  setup.lock = std::make_unique<RunFolderLock>(run);
  RecoveryPlan found = plan_recovery(run);
  if (!found.state) {
    throw InputError(run.string(), "resume",
                     "holds no complete checkpoint to continue from; choose another folder, or delete this one, and "
                     "begin without --resume (with log.payload = metadata, 'hat replay RUN --until N --output "
                     "RUN/checkpoints/step-N' may make one from the log, N being a step in eight digits)");
  }
  if (const int64_t told = last_logged_step(run); told > found.state->step) {
    fmt::print(
        "{}: metrics.jsonl tells of {} steps, checkpoint and gradient log give {}: steps {} to {} are trained again\n",
        run.string(), told, found.state->step, found.state->step + 1, told);
  }
  check_continuation(*found.state, found.source, setup.plan, *setup.dataset);
  setup.plan.first_step = found.state->step;
  return found;
}

/// Brings the run to where it was, and opens the checkpoint of that; none is opened when it was asked to stop on the
/// way, and has. Collective; `found`: of rank 0.
ExitCode continue_run(const Communicator& world, RunSetup& setup, RecoveryPlan found) {
  const std::filesystem::path run = setup.plan.deck.output;
  const int64_t planned = setup.plan.first_step;
  const RecoveryEnd end = recover_run(world, setup, std::move(found));
  if (end.code != ExitCode::success) {
    if (world.rank() == 0) note_failure(run, "the run cannot be recovered; why, stands in the output");
    return end.code;
  }
  if (end.stop_reason) {
    return on_all_ranks(world, [&] {
      if (world.rank() != 0) return;
      note_stop(run, end.step, *end.stop_reason);
      fmt::print("stopped after step {} of {} that were committed: {}; --resume recovers the others\n", end.step,
                 planned, *end.stop_reason);
    });
  }
  setup.enter("opening the checkpoint to continue from");
  return on_all_ranks(world, [&] {
    setup.checkpoint.emplace(checkpoint_to_continue(run));
    setup.plan.first_step = setup.checkpoint->state().step;
    setup.plan.end_step = std::max(setup.plan.end_step, setup.plan.first_step);  // a deck that asks for fewer is done
  });
}

ExitCode train_with(RunSetup& setup, const Communicator& world, const Deck& deck, const std::string& deck_text,
                    const RunSurroundings& surroundings) {
  setup.watchdog = surroundings.watchdog;
  setup.plan.deck = deck;
  setup.enter("comparing decks of all ranks");
  const std::vector<int> node_of_rank = world.node_of_rank();
  const std::string first_deck = world.broadcast(deck_text, 0);
  ExitCode code = on_all_ranks(world, [&] { check_same_deck(world, deck_text, first_deck); });
  if (code == ExitCode::success) code = check_nobody_trains_in(world, deck.output);
  if (code != ExitCode::success) return code;
  setup.enter("checking deck and data on all ranks", bytes_of_files(deck.data.path));
  code = on_all_ranks(
      world, [&] { prepare_run(world, node_of_rank, deck, deck_text, setup); }, surroundings.blame);
  if (code == ExitCode::success) code = choose_device(world, node_of_rank, setup, surroundings.blame);
  if (code != ExitCode::success || is_stopped(world)) return code;
  RecoveryPlan found;
  if (deck.resume) {
    setup.enter("looking for where the run stands",
                bytes_in_folders(deck.output, "checkpoints") + bytes_in_folders(deck.output, "log"));
    code = on_all_ranks(
        world,
        [&] {
          if (world.rank() == 0) found = find_continuation(setup);
        },
        surroundings.blame);
    if (code != ExitCode::success) return code;
  }
  const bool continues = world.all_reduce_max(found.state ? 1 : 0) > 0;
  setup.plan.first_step = world.all_reduce_max(setup.plan.first_step);
  const bool has_ended = setup.server == 0 && is_over(setup.plan) && !found.is_needed;
  if (world.all_reduce_max(has_ended ? 1 : 0) > 0) {
    if (has_ended) {
      fmt::print("{} is finished: its {} {} done, nothing changes; more train.steps continue it\n",
                 setup.plan.deck.output, counted(setup.plan.first_step, "step"),
                 setup.plan.first_step == 1 ? "is" : "are");
    }
    return ExitCode::success;
  }
  setup.enter("measuring what ranks can do");
  code = choose_compute(world, node_of_rank, setup, surroundings.blame);
  if (code != ExitCode::success || is_stopped(world)) return code;
  fault_point(FaultPoint::start);
  setup.enter("making the run folder");
  if (setup.server == 0 && surroundings.begin_s) {
    setup.plan.deadline = run_deadline(setup.plan.deck, *surroundings.begin_s);
  }
  code = on_all_ranks(world, [&] {
    if (setup.server == 0) setup.lock = make_run_folder(setup.plan, std::move(setup.lock));
    if (setup.server == 0) setup.plan.log_attempt = log_attempt(setup.plan.deck);
  });
  setup.plan.log_attempt = world.all_reduce_max(setup.plan.log_attempt);
  if (code != ExitCode::success) return code;
  if (setup.watchdog != nullptr) {
    setup.watchdog->set_last_word([run = setup.plan.deck.output, rank = world.rank()](const std::string& line) {
      return static_cast<int>(tell_failure(run, rank, line, ""));
    });
  }
  if (continues) {
    code = continue_run(world, setup, std::move(found));
    if (code != ExitCode::success || !setup.checkpoint) return code;
  }
  try {
    if (setup.server == 0)
      describe_run(setup, world.size(), *std::max_element(node_of_rank.begin(), node_of_rank.end()) + 1);
    run_roles(setup, world, node_of_rank, surroundings);
  } catch (const RankLost&) {
    throw;
  } catch (const std::exception& error) {
    // Others may be waiting for this rank in any call: only an abort reaches them.
    const std::string line =
        fmt::format("rank {} ({}): {}", world.rank(), role_name(setup.plan.roles, world.rank()), error.what());
    const ExitCode failure = tell_failure(setup.plan.deck.output, world.rank(), line, surroundings.failure_note);
    setup.enter("MPI_Abort");
    abort_all_ranks(static_cast<int>(failure));
  }
  return ExitCode::success;
}

}  // namespace

ExitCode run_training(const Communicator& world, const Deck& deck, const std::string& deck_text,
                      const RunSurroundings& surroundings) {
  auto setup = std::make_unique<RunSetup>();
  try {
    return train_with(*setup, world, deck, deck_text, surroundings);
  } catch (const RankLost&) {
    // What a rank was doing still refers to it (RoleLife).
    setup->lock.reset();
    (void)setup.release();
    throw;
  }
}

ExitCode check_training(const Communicator& world, const Deck& deck, const KeyBlame& blame) {
  const std::vector<int> node_of_rank = world.node_of_rank();
  RunSetup setup;
  ExitCode code = on_all_ranks(
      world, [&] { prepare_run(world, node_of_rank, deck, "", setup); }, blame);
  if (code == ExitCode::success) code = choose_device(world, node_of_rank, setup, blame);
  return code == ExitCode::success ? choose_compute(world, node_of_rank, setup, blame) : code;
}

}  // namespace hat
