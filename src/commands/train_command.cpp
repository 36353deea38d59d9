#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "commands/all_ranks.hpp"
#include "commands/run_folder.hpp"
#include "commands/training_run.hpp"
#include "hat/comm/mpi_environment.hpp"
#include "hat/comm/rank_watch.hpp"
#include "hat/commands/commands.hpp"
#include "hat/config/deck_schema.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/fault.hpp"
#include "hat/core/stop_signal.hpp"
#include "hat/core/watchdog.hpp"

namespace hat {

namespace {

namespace fs = std::filesystem;

/// `RUN/deck.toml --resume` means the run in the folder RUN, wherever that lies now: its deck says where it was.
void continue_where_the_deck_lies(OptionSet& options, const Deck& deck, const std::optional<fs::path>& deck_file) {
  if (!deck.resume || !deck_file || deck_file->filename() != "deck.toml") return;
  const fs::path run = deck_file->has_parent_path() ? deck_file->parent_path() : fs::path(".");
  const bool is_chosen = options.nearness("output") > OptionSet::Nearness::deck;
  if (is_chosen || !fs::exists(run / "checkpoints")) return;
  options.set("output", run.string(), deck_file->string());
}

/// MPI_Init is watched with the deck's time-out, so the deck is read before it; what is wrong with it is told behind
/// it.
std::exception_ptr load(OptionSet& options, Deck& deck, const std::optional<fs::path>& deck_file) {
  try {
    options.load(deck_file);
    continue_where_the_deck_lies(options, deck, deck_file);
    resolve_presets(options, deck);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

/// A run, on fewer and fewer ranks if some are lost on the way and the launcher spares the others.
class Survival {
 public:
  Survival(const Communicator& world, Watchdog& watchdog, KeyBlame blame)
      : world_(&world), watchdog_(watchdog), blame_(std::move(blame)) {}

  ExitCode run(Deck deck, const std::string& deck_text, double begin_s) {
    const TroubleEnds trouble_ends{watchdog_};  // whoever is refused may end before others
    if (launcher_spares_survivors() && world_->size() > 1) {
      watchdog_.enter("getting to know the other ranks", start_patience_s(deck));
      look_after_ranks(std::make_unique<RankWatch>(*world_, std::min(kFrozenAfter_s, deck.timeout_s)));
    }
    while (true) {
      try {
        // As one rank sees it: file systems of several hosts may differ for a moment.
        if (has_lost_ranks_) deck.resume = world_->broadcast(goes_on_in(deck) ? "yes" : "", 0) == "yes";
        const ExitCode code = run_training(
            *world_, deck, deck_text, {.watchdog = &watchdog_, .watch = watch_, .begin_s = begin_s, .blame = blame_});
        // (Ranks of a job that was split are refused where the others train.)
        if (code != ExitCode::success && has_lost_ranks_ && world_->rank() == 0 && !is_held(deck.output) &&
            !has_failed(deck.output)) {
          note_failure(deck.output, "the survivors of a lost rank cannot go on; why, stands in the output");
        }
        return code;
      } catch (const RankLost& lost) {
        regroup_after(lost, deck);
        deck.servers = std::min<int64_t>(deck.servers, std::max(1, world_->size() - 1));
        if (world_->size() - deck.servers < 2 && deck.gang.policy == SplitPolicy::always) {
          deck.gang.policy = SplitPolicy::never;  // one worker is all of them
        }
      }
    }
  }

  /// MPI_Finalize would wait for the dead, as would freeing what they had a part in. The launcher would wait for
  /// whoever stands still.
  [[noreturn]] void leave(ExitCode code) {
    std::fflush(nullptr);
    watch_->see_off();
    std::_Exit(static_cast<int>(code));
  }
  /// The same behind a collective, messages of which this rank may still have to deliver: without them the others would
  /// take it for lost.
  [[noreturn]] void leave_with_the_others(ExitCode code) {
    constexpr unsigned kPause_us = 500'000;
    ::usleep(kPause_us);
    leave(code);
  }
  bool has_lost_ranks() const { return has_lost_ranks_; }
  /// Null: a death ends the job. It is there until the process ends.
  const RankWatch* watch() const { return watch_; }

 private:
  /// Or the run had not begun.
  static bool goes_on_in(const Deck& deck) { return deck.resume || fs::exists(fs::path(deck.output) / "deck.toml"); }

  static constexpr double kFrozenAfter_s = 10;
  /// What the watchdog asks goes away with the watch.
  struct TroubleEnds {
    Watchdog& watchdog;
    ~TroubleEnds() { watchdog.set_trouble({}); }
  };

  void look_after_ranks(std::unique_ptr<RankWatch> watch) {
    // For ever: what the ranks of a lost job were doing refers to theirs, and the watchdog of MPI_Finalize asks for it.
    static std::vector<std::unique_ptr<RankWatch>> watches;
    watch_ = watches.emplace_back(std::move(watch)).get();
    world_->look_while_waiting([seen = watch_] { seen->throw_if_lost(); });
    watchdog_.set_before_end([seen = watch_] { seen->kill_stopped(); });
    heed_trouble();
  }
  void heed_trouble() {
    watchdog_.set_trouble([seen = watch_] { return seen->describe_gone(); });
  }

  void regroup_after(const RankLost& lost, const Deck& deck) {
    has_lost_ranks_ = true;
    watchdog_.set_trouble({});
    const double begin_s = now_s();
    if (has_failed(deck.output)) leave(ExitCode::failure);  // it did not die: it told why it cannot go on
    // Longer than those who are waited for may take, or nobody would ever be left out.
    watchdog_.enter("finding the other survivors", 3 * deck.timeout_s + start_patience_s(deck));
    try {
      fault_point(FaultPoint::regroup);
      const std::set<int> ranks = agree_on_survivors(*world_, *watch_, lost.ranks(), deck.timeout_s);
      std::set<int> others;
      for (int rank = 0; rank < world_->size(); ++rank) {
        if (!ranks.contains(rank)) others.insert(rank);
      }
      watch_->give_up(others);
      heed_trouble();  // one that dies now would leave the others inside MPI
      watchdog_.enter("making a communicator of the survivors", start_patience_s(deck));
      fault_point(FaultPoint::regroup);
      world_ = new Communicator(world_->subset({ranks.begin(), ranks.end()}));  // never freed
      look_after_ranks(std::make_unique<RankWatch>(*world_, *watch_, ranks));
    } catch (const Error& error) {
      fmt::print(stderr, "hat: {}; {}\n", lost.what(), error.what());
      leave(ExitCode::failure);
    }
    if (world_->rank() != 0) return;
    fmt::print("{}; the run goes on with the other {} rank{} (they were together after {:.1f} s)\n", lost.what(),
               world_->size(), world_->size() == 1 ? "" : "s", now_s() - begin_s);
    std::fflush(stdout);
  }

  const Communicator* world_;
  Watchdog& watchdog_;
  KeyBlame blame_;
  RankWatch* watch_ = nullptr;  // of the world; null: a death ends the job
  bool has_lost_ranks_ = false;
};

ExitCode train(OptionSet& options, Deck& deck, const std::optional<fs::path>& deck_file) {
  const double begin_s = now_s();
  catch_stop_signals();
  const std::exception_ptr problem = load(options, deck, deck_file);
  const int rank = rank_told_by_launcher();
  set_fault(deck.fault, rank);
  Watchdog watchdog(fmt::format("rank {}", rank));
  watchdog.set_last_word([rank](const std::string& line) {
    let_lower_ranks_speak(rank);
    fmt::print(stderr, "hat: {}\n", line);
    return static_cast<int>(ExitCode::failure);
  });
  ExitCode code = ExitCode::success;
  const RankWatch* watch = nullptr;
  {
    watchdog.enter("MPI_Init", start_patience_s(deck));
    const MpiEnvironment mpi;
    const Communicator world = Communicator::world();
    watchdog.enter("reading the deck on all ranks", start_patience_s(deck));
    code = on_all_ranks(world, [&] {
      refuse_accidental_singleton();
      if (problem) std::rethrow_exception(problem);
      if (deck.fault.at != FaultPoint::none && deck.fault.rank >= world.size()) {
        throw options.error("fault.rank", fmt::format("the job has ranks 0 to {}", world.size() - 1));
      }
    });
    if (code == ExitCode::success) {
      Survival survival(world, watchdog, [&options](const KeyError& bad) { return options.error(bad); });
      code = survival.run(deck, options.effective(), begin_s);
      if (survival.has_lost_ranks()) survival.leave_with_the_others(code);
      watch = survival.watch();
    }
    watchdog.enter("MPI_Finalize", start_patience_s(deck));
  }
  watchdog.leave();
  if (watch != nullptr) watch->see_off();
  return code;
}

}  // namespace

CommandBody add_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Train a model: servers and workers, one deck");
  command->footer(
      "Example: mpirun -n 3 hat train inputs/quickstart.toml --data.path dataset.h5 --output hat-run\n"
      "         mpirun -n 3 hat train hat-run/deck.toml --resume   (goes on in the folder that this deck lies in)\n"
      "Every key is also an environment variable (model.width: HAT_MODEL_WIDTH). Command line over environment over "
      "deck.\nOf keys that exclude each other (batch_tokens, batch_sequences; train.steps, train.tokens, train.epochs) "
      "the one set nearest to the command line counts.\n"
      "SIGTERM or SIGUSR1 on any rank, or the end of the time (time_limit, Slurm), stops a run with a checkpoint: exit "
      "code 0, "
      "status.json says \"stopped\"\nand why; --resume continues it.\n"
      "Flags are true or false; --trace stands for --trace=true, --no-trace for --trace=false (one word each).");
  auto deck = std::make_shared<Deck>();
  auto deck_file = std::make_shared<std::string>();
  command->add_option("deck", *deck_file,
                      "Deck file (TOML, but a key may have a value and keys below it: optimizer and optimizer.beta1)");
  auto options = std::make_shared<OptionSet>(*command);
  add_deck_keys(*options, *deck);
  return [options, deck, deck_file] {
    std::optional<fs::path> file;
    if (!deck_file->empty()) file = *deck_file;
    return train(*options, *deck, file);
  };
}

}  // namespace hat
