#include "hat/comm/rank_watch.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <thread>

#include "hat/comm/backoff.hpp"
#include "hat/comm/mailbox.hpp"
#include "hat/core/clock.hpp"

namespace hat {

namespace {

constexpr double kLookEvery_s = 0.2;

struct ProcessState {
  char letter = 0;
  uint64_t started = 0;
};

/// Of /proc/<pid>/stat: the state, and when it began. Nothing: there is no such process.
std::optional<ProcessState> state_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t behind_name = text.rfind(')');  // a name may hold anything
  if (behind_name == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(behind_name + 1));
  ProcessState state;
  fields >> state.letter;
  constexpr int kFieldsToStart = 18;  // state is field 3, the start time 22
  std::string skipped;
  for (int i = 0; i < kFieldsToStart; ++i) fields >> skipped;
  fields >> state.started;
  return fields ? std::optional(state) : std::nullopt;
}

bool is_gone(const std::optional<ProcessState>& state, uint64_t started) {
  return !state || state->started != started || state->letter == 'Z' || state->letter == 'X';
}

bool is_stopped(const ProcessState& state) { return state.letter == 'T' || state.letter == 't'; }

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string text_of(const std::set<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  bool first = true;
  for (const int rank : ranks) {
    text += (first ? "" : ", ") + std::to_string(rank);
    first = false;
  }
  return text;
}

void append(MessageWriter& writer, const std::set<int>& ranks) {
  writer(std::vector<int64_t>(ranks.begin(), ranks.end()));
}

/// What a rank tells the others of itself.
struct ProcessPlace {
  std::string host;
  int64_t pid = 0;
  uint64_t started = 0;
  template <class F>
  void fields(F& f) {
    f(host), f(pid), f(started);
  }
};

/// Messages of `agree_on_survivors`, apart from those of a run.
enum AgreementTag : int { kHere = 11, kMembers = 12, kAsk = 13 };

void send(const Communicator& world, const std::set<int>& ranks, int to, int tag) {
  MessageWriter writer;
  append(writer, ranks);
  // Never freed: the one it is for may be dying, and then it never leaves.
  auto* bytes = new std::vector<std::byte>(writer.take());
  auto* request = new Request(world.start_send(*bytes, to, tag));
  request->test();
}

std::set<int> open(const Incoming& incoming) {
  MessageReader reader(incoming.data);
  std::vector<int64_t> ranks;
  reader(ranks);
  return {ranks.begin(), ranks.end()};
}

}  // namespace

bool launcher_spares_survivors() {
  const char* text = std::getenv("OMPI_MCA_orte_enable_recovery");
  return text != nullptr && (std::string(text) == "1" || std::string(text) == "true");
}

RankWatch::RankWatch(const Communicator& world, double frozen_after_s)
    : world_(&world), own_rank_(world.rank()), frozen_after_s_(frozen_after_s) {
  const std::optional<ProcessState> state = state_of(::getpid());
  const ProcessPlace own{.host = host_name(), .pid = ::getpid(), .started = state ? state->started : 0};
  for (const std::string& text : world.all_gather(packed(own))) {
    const auto other = unpacked<ProcessPlace>(text);
    Process process{.pid = static_cast<int>(other.pid), .started = other.started};
    // The same name may be that of another container, whose processes have other numbers here.
    const std::optional<ProcessState> seen = other.host == own.host ? state_of(process.pid) : std::nullopt;
    process.is_here = seen && process.started != 0 && seen->started == process.started;
    processes_.push_back(process);
  }
}

RankWatch::RankWatch(const Communicator& survivors, const RankWatch& before, const std::set<int>& ranks)
    : world_(&survivors), own_rank_(survivors.rank()), frozen_after_s_(before.frozen_after_s_) {
  for (const int rank : ranks) processes_.push_back(before.processes_[static_cast<size_t>(rank)]);
}

std::set<int> RankWatch::find_lost() {
  std::set<int> ranks;
  const double now = now_s();
  // A look after a long time may be one after having been stopped oneself: others may just have been let go on, too.
  const bool looked_lately = now - looked_s_ < frozen_after_s_ / 2;
  looked_s_ = now;
  for (size_t rank = 0; rank < processes_.size(); ++rank) {
    Process& process = processes_[rank];
    if (!process.is_here || static_cast<int>(rank) == own_rank_) continue;
    const std::optional<ProcessState> state = state_of(process.pid);
    const bool gone = is_gone(state, process.started);
    if (!gone && !is_stopped(*state)) {
      process.stopped_since = 0;
    } else if (!gone && (process.stopped_since == 0 || !looked_lately)) {
      process.stopped_since = now;
    } else if (gone || now - process.stopped_since > frozen_after_s_) {
      ranks.insert(static_cast<int>(rank));
    }
  }
  return ranks;
}

void RankWatch::tell_others(const std::set<int>& lost) const {
  for (int rank = 0; rank < world_->size(); ++rank) {
    if (rank != own_rank_ && !lost.contains(rank)) send(*world_, lost, rank, kAsk);
  }
}

void RankWatch::throw_if_lost() {
  if (now_s() - looked_s_ < kLookEvery_s) return;
  std::set<int> ranks = find_lost();
  for (const AgreementTag tag : {kAsk, kHere}) {
    while (const std::optional<Incoming> incoming = world_->try_receive(tag)) {
      if (tag == kHere) here_.insert(incoming->source);
      ranks.merge(open(*incoming));
    }
  }
  if (!ranks.empty()) throw RankLost(ranks, text_of(ranks) + " ended or stopped");
}

void RankWatch::give_up(const std::set<int>& ranks) {
  const std::lock_guard lock(mutex_);
  given_up_.insert(ranks.begin(), ranks.end());
}

std::string RankWatch::describe_gone() const {
  const std::lock_guard lock(mutex_);
  std::set<int> ranks;
  for (int rank = 0; rank < std::ssize(processes_); ++rank) {
    const Process& process = processes_[static_cast<size_t>(rank)];
    if (!process.is_here || given_up_.contains(rank)) continue;
    if (is_gone(state_of(process.pid), process.started)) ranks.insert(rank);
  }
  return ranks.empty() ? "" : text_of(ranks) + " ended";
}

void RankWatch::kill_stopped() const {
  for (size_t rank = 0; rank < processes_.size(); ++rank) {
    const std::optional<ProcessState> state = processes_[rank].is_here ? state_of(processes_[rank].pid) : std::nullopt;
    if (state && is_stopped(*state)) kill(static_cast<int>(rank));
  }
}

void RankWatch::see_off() const {
  constexpr double kPatience_s = 5;
  constexpr std::chrono::milliseconds kPause(20);
  const auto lives = [this](size_t rank) {
    const Process& process = processes_[rank];
    return process.is_here && !is_gone(state_of(process.pid), process.started);
  };
  kill_stopped();
  for (int rank = 0; rank < own_rank_; ++rank) {
    if (processes_[static_cast<size_t>(rank)].is_here) return;
  }
  for (const double begin_s = now_s(); now_s() - begin_s < kPatience_s; std::this_thread::sleep_for(kPause)) {
    bool any = false;
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      any = any || (static_cast<int>(rank) != own_rank_ && lives(rank));
    }
    if (!any) return;
    kill_stopped();
  }
}

void RankWatch::kill(int rank) const {
  const Process& process = processes_[static_cast<size_t>(rank)];
  const std::optional<ProcessState> state = process.is_here ? state_of(process.pid) : std::nullopt;
  if (state && state->started == process.started) ::kill(process.pid, SIGKILL);
}

namespace {

/// The part of the one that asks. `here`: who has answered already. Returns the members.
std::set<int> gather(const Communicator& world, RankWatch& watch, std::set<int>& lost, std::set<int> here,
                     double patience_s) {
  here.insert(world.rank());
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank != world.rank() && !lost.contains(rank)) send(world, lost, rank, kAsk);
  }
  const double begin_s = now_s();
  for (Backoff backoff;; backoff.pause()) {
    while (const std::optional<Incoming> incoming = world.try_receive(kHere)) {
      here.insert(incoming->source);
      lost.merge(open(*incoming));
    }
    lost.merge(watch.find_lost());
    const bool is_late = now_s() - begin_s > patience_s;
    bool all = true;
    for (int rank = 0; rank < world.size(); ++rank) {
      if (here.contains(rank) || lost.contains(rank)) continue;
      all = false;
      if (is_late) lost.insert(rank);
    }
    if (all) break;
  }
  for (const int rank : lost) here.erase(rank);
  for (const int rank : here) {
    if (rank != world.rank()) send(world, here, rank, kMembers);
  }
  return here;
}

int leader_of(const Communicator& world, const std::set<int>& lost) {
  int leader = 0;
  while (lost.contains(leader)) ++leader;
  return std::min(leader, world.size() - 1);
}

}  // namespace

std::set<int> agree_on_survivors(const Communicator& world, RankWatch& watch, std::set<int> lost, double patience_s) {
  std::set<int> members;
  int told = -1;  // the leader that knows that this rank is here
  const double begin_s = now_s();
  for (Backoff backoff; members.empty(); backoff.pause()) {
    lost.merge(watch.find_lost());
    const int leader = leader_of(world, lost);
    if (leader == world.rank()) {
      members = gather(world, watch, lost, watch.here_, patience_s);
      break;
    }
    if (told != leader) {
      send(world, lost, leader, kHere);
      told = leader;
    }
    while (const std::optional<Incoming> incoming = world.try_receive(kMembers)) {
      const std::set<int> named = open(*incoming);
      if (incoming->source == leader && named.contains(world.rank())) members = named;
    }
    if (now_s() - begin_s > 2 * patience_s) {
      throw Error("rank " + std::to_string(world.rank()) + " heard nothing of the other survivors");
    }
  }
  for (int rank = 0; rank < world.size(); ++rank) {
    if (!members.contains(rank)) watch.kill(rank);
  }
  return members;
}

}  // namespace hat
