#pragma once
#include <CLI/CLI.hpp>

#include "hat/core/error.hpp"

namespace hat {

/// What CLI11 found wrong with the command line as one line, with a suggestion for a misspelt option or command.
InputError command_line_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace hat
