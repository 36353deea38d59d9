#pragma once
#include <string>

namespace hat {

/// From now on SIGTERM and SIGUSR1 only wait to be asked for: whoever does ends the run in an orderly way. Batch
/// systems send one of them before they kill. To be called before other threads are started, which inherit it.
void catch_stop_signals();

/// The first of these signals that has come; 0: none. Later ones change nothing.
int stop_signal() noexcept;

/// "SIGTERM", "SIGUSR1"; "signal 12" of others.
std::string signal_name(int signal);

}  // namespace hat
