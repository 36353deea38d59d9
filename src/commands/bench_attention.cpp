#include "commands/bench.hpp"
namespace hat {
CommandBody add_bench_attention(CLI::App& bench) {
  bench.add_subcommand("attention", "x");
  return [] { return ExitCode::success; };
}
}  // namespace hat
