#include "hat/server/server.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <optional>
#include <set>
#include <stdexcept>

#include "hat/checkpoint/gradient_log.hpp"
#include "hat/comm/mailbox.hpp"
#include "hat/core/background_thread.hpp"
#include "hat/core/build_info.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "hat/core/silence.hpp"
#include "hat/core/stop_signal.hpp"
#include "server/clipping.hpp"
#include "server/coordinator.hpp"
#include "server/push_receiver.hpp"
#include "server/shard.hpp"
#include "server/snapshot.hpp"

namespace hat {

namespace {
/// Lines of a run are read while it runs.
void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

/// Null: the deck asks for none.
std::unique_ptr<GradientLog> make_log(const RunPlan& plan, int server, const Dataset& dataset) {
  const LogConfig& config = plan.deck.log;
  if (plan.log_attempt == 0) return nullptr;
  LogAttempt attempt{.number = plan.log_attempt,
                     .first_step = plan.first_step,
                     .servers = plan.roles.servers(),
                     .payload = config.payload,
                     .deck = plan.deck_text,
                     .vocabulary = plan.deck.model.vocabulary,
                     .dataset_path = std::filesystem::absolute(dataset.path()).string(),
                     .dataset_identity = dataset.identity(),
                     .tokenizer = dataset.tokenizer().name(),
                     .workers = plan.roles.workers(),
                     .compute = plan.compute,
                     .build = text_of(build_info())};
  std::vector<Part> parts;
  for (const int64_t part : plan.shards.parts_of_server[static_cast<size_t>(server)]) {
    parts.push_back(plan.shards.parts[static_cast<size_t>(part)]);
  }
  return std::make_unique<GradientLog>(plan.deck.output, std::move(attempt), server, plan.layout, std::move(parts),
                                       config, plan.deck.checkpoint.every);
}
}  // namespace

struct Server::Impl {
  Impl(const RunPlan& run_plan, int server_number, const Dataset& dataset, const Communicator& world,
       const Window& window, const CheckpointReader* checkpoint, TraceRecorder* trace)
      : plan(run_plan),
        server(server_number),
        mailbox(world, MailTag::to_server),
        order(dataset, plan.deck, plan.piece_tokens),
        clipping(plan, server, checkpoint != nullptr ? checkpoint->state().recent_norms : std::vector<double>{},
                 [this](const NormShare& share, int to) { post_to_server(share, to); }),
        snapshot(plan, server),
        shard(
            plan, server, order, window, clipping, [this](const StepComplete& message) { post_to_server(message, 0); },
            [this](int64_t part, int64_t steps) { snapshot.part_at_step(shard, part, steps); }),
        pushes(world, [this](const PushHeader& header, std::span<const float> body, double travel_s) {
          shard.add_push(header, body, travel_s);
        }) {
    shard.set_trace(trace);
    log = make_log(plan, server, dataset);
    if (plan.deck.log.payload != LogPayload::none) shard.set_log(log.get());
    if (checkpoint != nullptr) {
      shard.restore(*checkpoint);
    } else {
      shard.initialize();
    }
    if (server == 0) coordinator = std::make_unique<Coordinator>(plan, dataset, mailbox, checkpoint);
  }

  template <class Message>
  void post_to_server(const Message& message, int to) {
    mailbox.post(message, plan.roles.rank_of_server[static_cast<size_t>(to)], MailTag::to_server);
  }

  bool take(Mail& mail);
  void handle(Mail& mail);
  bool progress();
  void tell_log_of_commits();
  void tell_of_signal();
  void say_alive();
  void watch_stall(bool news);
  void check_time_out(bool news);
  std::string who_waits() const;
  std::string silent_ones(double since_s, std::set<int>* ranks = nullptr) const;
  bool is_closed();

  const RunPlan& plan;
  int server;
  Mailbox mailbox;
  DataOrder order;
  Clipping clipping;
  Snapshot snapshot;
  std::unique_ptr<GradientLog> log;
  Shard shard;
  PushReceiver pushes;
  std::unique_ptr<Coordinator> coordinator;  // on server 0
  int64_t logged_commits = 0;                // told to a log with computations
  bool told_of_signal = false;
  bool shut_down = false;                // told so by server 0
  bool has_begun = false;                // its loop; before, a slow start of another rank is no silence
  Silence silence{plan.deck.timeout_s};  // nobody told of anything new
  std::vector<double> heard_s;           // of server 0: when there was a word of each rank
  struct Wait {
    Alive what;
    double heard_s = 0;
  };
  std::vector<Wait> waits;  // likewise: what each rank said last that it waits for
  struct Stall {
    Silence silence;
    double after_s;                 // until the next line
    std::optional<double> begin_s;  // of one that was told
  };
  Stall stall{.silence = Silence(plan.deck.stall_after_s), .after_s = plan.deck.stall_after_s, .begin_s = {}};
  double last_alive_s = 0;    // when this server said that it is there
  std::future<void> closing;  // of the log
  BackgroundThread closer;    // last member: it ends before what its job uses
};

/// All is said and done, and the log is closed, which takes as long as the disk does.
bool Server::Impl::is_closed() {
  const bool told = coordinator ? coordinator->finished() : shut_down;
  if (!told || !mailbox.flush()) return false;
  if (!log) return true;
  if (!closing.valid()) closing = closer.submit([this] { log->close(); });
  if (!is_ready(closing)) return false;
  closing.get();
  log.reset();
  return true;
}

/// Whether it is news: of a rank that is merely there the run does not go on.
bool Server::Impl::take(Mail& mail) {
  if (mail.kind() == MessageKind::alive) {
    Wait& wait = waits[static_cast<size_t>(mail.source())];
    wait.what = mail.open<Alive>();
    wait.heard_s = now_s();
    return wait.what.computes || !coordinator;
  }
  handle(mail);
  return true;
}

void Server::Impl::handle(Mail& mail) {
  switch (mail.kind()) {
    case MessageKind::push:
      pushes.expect(mail.open<PushHeader>(), mail.source());
      return;
    case MessageKind::norm_total:
      clipping.receive(mail.open<NormTotal>());
      return;
    case MessageKind::shutdown:
      shut_down = true;
      return;
    case MessageKind::norm_share: {
      const auto share = mail.open<NormShare>();
      if (share.block == NormShare::kAllBlocks) {
        coordinator->receive(share);
      } else {
        clipping.receive(share);
      }
      return;
    }
    case MessageKind::lease_request:
      coordinator->receive(mail.open<LeaseRequest>());
      return;
    case MessageKind::unit_report:
      coordinator->receive(mail.open<UnitReport>());
      return;
    case MessageKind::computed_unit: {
      auto computed = mail.open<ComputedUnit>();
      if (!log) return;
      log->add(LoggedComputation{.worker = computed.worker,
                                 .unit = computed.unit,
                                 .generation = computed.generation,
                                 .step = computed.step,
                                 .tokens = computed.tokens,
                                 .member = computed.member},
               {.versions = std::move(computed.versions),
                .bounds = std::move(computed.bounds),
                .sequences = std::move(computed.sequences)});
      return;
    }
    case MessageKind::evaluation_report:
      coordinator->receive(mail.open<EvaluationReport>());
      return;
    case MessageKind::step_complete:
      coordinator->receive(mail.open<StepComplete>());
      return;
    case MessageKind::checkpoint_written:
      coordinator->receive(mail.open<CheckpointWritten>());
      return;
    case MessageKind::worker_summary:
      coordinator->receive(mail.open<WorkerSummary>());
      return;
    case MessageKind::gradient_sketch:
      coordinator->receive(mail.open<GradientSketch>());
      return;
    case MessageKind::stop_request: {
      const auto request = mail.open<StopRequest>();
      coordinator->stop(fmt::format("{} on rank {}", signal_name(static_cast<int>(request.signal)), request.rank));
      return;
    }
    case MessageKind::stop_at: {
      const auto stop = mail.open<StopAt>();
      if (!stop.checkpoint) return;
      snapshot.also_at(stop.steps);
      shard.tell_parts_at(stop.steps);
      return;
    }
    case MessageKind::alive:
    case MessageKind::lease:
      break;
  }
  throw Error(fmt::format("server {} received a message of kind {}, which is not for servers", server,
                          static_cast<int>(mail.kind())));
}

// Mail first: answers are short and somebody waits for them. Then bodies, then a piece of update work.
bool Server::Impl::progress() {
  if (!has_begun) {
    heard_s.assign(static_cast<size_t>(mailbox.communicator().size()), now_s());
    waits.resize(heard_s.size());
    silence.end();
    stall.silence.end();
    has_begun = true;
  }
  tell_of_signal();
  bool any = false;
  // One update per push: a gradient that waits here grows later with every other that is let in before it, and workers
  // that get leases faster than updates are made would run away from them.
  while (plan.unbounded() && !snapshot.holds_updates() && shard.progress()) any = true;
  while (const std::unique_ptr<Mail> mail = mailbox.try_receive()) {
    heard_s[static_cast<size_t>(mail->source())] = now_s();
    any = take(*mail) || any;
  }
  any = pushes.progress() || any;
  any = (!snapshot.holds_updates() && shard.progress()) || any;
  for (CheckpointWritten& written : snapshot.take_written()) {
    if (log) written.logged_bytes = log->bytes();
    post_to_server(written, 0);
    any = true;
  }
  if (coordinator) any = coordinator->progress() || any;
  tell_log_of_commits();
  say_alive();
  const bool writes = snapshot.is_writing() || closing.valid() || (coordinator && coordinator->writes_files());
  check_time_out(any || writes);
  return any;
}

/// A worker says what it computed before it says that it did, which a step needs to be committed. A checkpoint is
/// complete when that is on the disk.
void Server::Impl::tell_log_of_commits() {
  if (!coordinator || !log || log->ends_with_parts()) return;
  if (coordinator->committed_steps() != logged_commits) {
    logged_commits = coordinator->committed_steps();
    log->completed_before(logged_commits);
  }
  coordinator->log_reaches(log->durable_steps());
}

void Server::Impl::tell_of_signal() {
  if (told_of_signal || stop_signal() == 0) return;
  told_of_signal = true;
  post_to_server(StopRequest{.rank = mailbox.communicator().rank(), .signal = stop_signal()}, 0);
}

// Server 0 notices when nobody moves any more, and ends the job: it hears of steps, and of workers that compute. All
// others only watch over server 0.
void Server::Impl::say_alive() {
  const bool is_over = coordinator ? coordinator->finished() : shut_down;
  const double now = now_s();
  if (is_over || now - last_alive_s < alive_every_s(plan.deck)) return;
  last_alive_s = now;
  if (!coordinator) {
    post_to_server(Alive{.computes = snapshot.is_writing()}, 0);
    return;
  }
  for (int other = 1; other < plan.roles.servers(); ++other) post_to_server(Alive{}, other);
  for (int worker = 0; worker < plan.roles.workers(); ++worker) {  // those that have ended wait for the others
    mailbox.post(Alive{}, plan.roles.rank_of_worker[static_cast<size_t>(worker)], MailTag::to_worker);
  }
}

// Most stalls end by themselves or by the time-out; whoever looks at a job that does not go on wants to know at once.
void Server::Impl::watch_stall(bool news) {
  if (!coordinator || plan.deck.stall_after_s == 0) return;
  if (news) {
    if (stall.begin_s) say(fmt::format("goes on after {:.0f} s without news", now_s() - *stall.begin_s));
    stall = {.silence = Silence(plan.deck.stall_after_s), .after_s = plan.deck.stall_after_s, .begin_s = {}};
    return;
  }
  if (!stall.silence.is_too_long()) return;
  if (!stall.begin_s) stall.begin_s = now_s() - stall.after_s;
  say(fmt::format("no news for {:.0f} s: {}{}", now_s() - *stall.begin_s, coordinator->stall_text(), who_waits()));
  stall.after_s *= 2;
  stall.silence = Silence(stall.after_s);
}

/// "; rank 1 waits for ... since 58 s; no sign of life of worker 1 (rank 2)"
std::string Server::Impl::who_waits() const {
  std::string text;
  for (size_t rank = 0; rank < waits.size(); ++rank) {
    const Wait& wait = waits[rank];
    if (wait.what.waits_for.empty()) continue;
    text += fmt::format("; rank {} waits for {} since {:.0f} s", rank, wait.what.waits_for,
                        wait.what.waits_s + now_s() - wait.heard_s);
  }
  const std::string dead = silent_ones(2 * alive_every_s(plan.deck));
  return dead.empty() ? text : fmt::format("{}; no sign of life of {}", text, dead);
}

void Server::Impl::check_time_out(bool news) {
  watch_stall(news);
  if (news) silence.end();
  if (news || !silence.is_too_long()) return;
  const std::string heard = fmt::format("server {} heard nothing for {} s (timeout_s)", server, plan.deck.timeout_s);
  if (!coordinator) throw SilentRanks({plan.roles.rank_of_server[0]}, heard + "; waiting for a word from server 0");
  std::set<int> ranks;
  const std::string dead = silent_ones(plan.deck.timeout_s / 2, &ranks);
  // One block of a long document is computed without a word.
  const bool may_compute = dead.find("worker") != std::string::npos;
  const std::string line = fmt::format(
      "{}, {}; waiting for {}{}", heard, dead.empty() ? "but that all ranks are there" : "no sign of life of " + dead,
      coordinator->waiting_for(),
      may_compute ? "; if one block of its unit takes longer than that, raise timeout_s" : "");
  if (ranks.empty()) throw Error(line);
  throw SilentRanks(ranks, line);
}

/// `ranks`: gets them too. "worker 1 (rank 2), server 1 (rank 1)": who has not said for so long that it is there.
std::string Server::Impl::silent_ones(double since_s, std::set<int>* ranks) const {
  std::string text;
  const auto look_at = [&](const char* role, int number, int rank) {
    if (now_s() - heard_s[static_cast<size_t>(rank)] < since_s) return;
    if (ranks != nullptr) ranks->insert(rank);
    text += fmt::format("{}{} {} (rank {})", text.empty() ? "" : ", ", role, number, rank);
  };
  for (int other = 1; other < plan.roles.servers(); ++other) {
    look_at("server", other, plan.roles.rank_of_server[static_cast<size_t>(other)]);
  }
  for (int worker = 0; worker < plan.roles.workers(); ++worker) {
    const int rank = plan.roles.rank_of_worker[static_cast<size_t>(worker)];
    if (!coordinator->has_ended(worker)) look_at("worker", worker, rank);
  }
  return text;
}

Server::Server(const RunPlan& plan, int server, const Dataset& dataset, const Communicator& world, const Window& window,
               const CheckpointReader* checkpoint, TraceRecorder* trace)
    : impl_(std::make_unique<Impl>(plan, server, dataset, world, window, checkpoint, trace)) {}
Server::~Server() = default;

bool Server::progress() { return impl_->progress(); }

bool Server::finished() { return impl_->is_closed(); }

void Server::abandon() noexcept {
  // What cannot be written any more is lost to the log as if this rank had died: recovery finds where that begins.
  try {
    if (impl_->closing.valid()) {  // another thread is at it
      impl_->closing.wait();
    } else if (impl_->log) {
      impl_->log->close();
    }
  } catch (const std::exception&) {
  }
  impl_->snapshot.finish();
  try {
    if (impl_->coordinator) impl_->coordinator->abandon();
  } catch (const std::exception&) {
  }
}

void Server::mark_finished() { impl_->coordinator->mark_finished(); }

RunResult Server::result() const {
  if (!impl_->coordinator) throw std::logic_error("only server 0 has the result of a run");
  return impl_->coordinator->result();
}

}  // namespace hat
