#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "hat/core/error.hpp"

namespace hat {

/// What CLI11 found wrong with the command line as one line, with a suggestion for a misspelt option or command.
InputError command_line_error(const CLI::App& app, const CLI::ParseError& error);

/// Refuses, for flags of the command that is named, values where they cannot stand: `--no-NAME=VALUE`, of which nobody
/// knows what it means, and `--NAME false`, two words. Values of other options may look like that. Throws InputError.
void refuse_misplaced_flag_values(const CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace hat
