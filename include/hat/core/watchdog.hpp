#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "hat/core/silence.hpp"

namespace hat {

/// A thread that ends this process when a call which has no time-out of its own does not return: MPI_Init, collectives
/// at the start and the end of a run. It makes no MPI calls and no assumptions about what the other thread holds.
///
/// One phase at a time is watched: `enter` begins the next one, `leave` ends watching. Time in which this process was
/// stopped itself does not count (Silence).
class Watchdog {
 public:
  /// What is done with the one line that says why the process ends, before it ends with the exit code that is returned.
  /// Called on the watchdog's thread.
  using LastWord = std::function<int(const std::string& line)>;

  /// `who`: "rank 2", begins the line. Until `set_last_word` the line goes to standard error and the exit code is 1.
  explicit Watchdog(std::string who);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void set_last_word(LastWord last_word);
  /// Why a watched phase can never end ("rank 4 has died"), empty where nothing is known of; asked now and then on the
  /// watchdog's thread, and believed when it has said so for a while: what happened may be noticed elsewhere, too.
  using Trouble = std::function<std::string()>;
  void set_trouble(Trouble trouble);
  /// What is done, on the watchdog's thread, when it ends this process.
  void set_before_end(std::function<void()> before_end);
  /// Who sees to it that trouble does not hold a phase up: the watchdog by ending the process, or the caller, who looks
  /// for it himself in whatever he waits for, and may go on.
  enum class TroubleIsFor { watchdog, caller };
  /// `phase`: "MPI_Init", what the line says the process was in.
  void enter(std::string phase, double limit_s, TroubleIsFor trouble_is_for = TroubleIsFor::watchdog);
  void leave();

 private:
  void watch();

  std::string who_;
  std::mutex mutex_;
  std::condition_variable wake_;
  LastWord last_word_;
  Trouble trouble_;
  std::function<void()> before_end_;
  std::string phase_;
  double limit_s_ = 0;
  bool heeds_trouble_ = true;
  std::optional<Silence> silence_;  // of the phase; empty: nothing is watched
  bool ending_ = false;
  std::thread thread_;  // last member: it uses the others
};

}  // namespace hat
