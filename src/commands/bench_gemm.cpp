#include "commands/bench.hpp"
namespace hat {
CommandBody add_bench_gemm(CLI::App& bench) {
  bench.add_subcommand("gemm", "x");
  return [] { return ExitCode::success; };
}
}  // namespace hat
