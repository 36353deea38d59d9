#pragma once
#include <CLI/CLI.hpp>
#include <functional>

#include "hat/core/error.hpp"

namespace hat {

/// What a command does once its options are parsed. Throws InputError / Error.
using CommandBody = std::function<ExitCode()>;

/// Each adds its subcommand to `app` (options, help text with a working example) and returns its body.
CommandBody add_train(CLI::App& app);
CommandBody add_tokenize(CLI::App& app);
CommandBody add_inspect(CLI::App& app);
CommandBody add_replay(CLI::App& app);
CommandBody add_eval(CLI::App& app);
CommandBody add_generate(CLI::App& app);
CommandBody add_info(CLI::App& app);
CommandBody add_bench(CLI::App& app);

}  // namespace hat
