#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "hat/comm/mpi_environment.hpp"
#include "hat/commands/commands.hpp"
#include "hat/config/command_line.hpp"
#include "hat/core/build_info.hpp"
#include "hat/core/error.hpp"

namespace {

/// One line on stderr, whatever the exception said.
int report(const std::exception& error, hat::ExitCode code) {
  std::string line = error.what();
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  hat::let_lower_ranks_speak(hat::rank_told_by_launcher());
  std::fprintf(stderr, "hat: %s\n", line.c_str());
  return static_cast<int>(code);
}

}  // namespace

int main(int argc, char** argv) {
  // Line by line, also into files: mpirun ends a rank once another has left with an exit code, and what is not out is
  // lost.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  try {
    CLI::App app("HAT: hybrid asynchronous training of transformer language models", "hat");
    app.set_version_flag("--version", "hat " + hat::build_info().version + " (" + hat::build_info().revision + ")");
    app.require_subcommand(1);
    app.footer("'hat COMMAND --help' explains each command and shows an example.");
    const std::vector<std::pair<const char*, hat::CommandBody>> commands{
        {"train", hat::add_train(app)},   {"tokenize", hat::add_tokenize(app)}, {"inspect", hat::add_inspect(app)},
        {"replay", hat::add_replay(app)}, {"eval", hat::add_eval(app)},         {"generate", hat::add_generate(app)},
        {"info", hat::add_info(app)},     {"bench", hat::add_bench(app)}};
    hat::refuse_misplaced_flag_values(app, {argv + 1, argv + argc});
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);  // --help
      return report(hat::command_line_error(app, error), hat::ExitCode::bad_input);
    }
    for (const auto& [name, body] : commands) {
      if (!app.got_subcommand(name)) continue;
      const hat::ExitCode code = body();
      if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw hat::Error("standard output: cannot be written");
      return static_cast<int>(code);
    }
    return static_cast<int>(hat::ExitCode::failure);  // not reached: one subcommand is required
  } catch (const hat::InputError& error) {
    return report(error, hat::ExitCode::bad_input);
  } catch (const std::exception& error) {
    return report(error, hat::ExitCode::failure);
  }
}
