#pragma once
#include "hat/config/deck.hpp"
#include "hat/config/option_set.hpp"

namespace hat {

/// Registers every key of `hat train` on the option set, with its help text and limits, bound to `deck`.
void add_deck_keys(OptionSet& options, Deck& deck);

/// After OptionSet::load: fills in what the mode presets (staleness, staleness.rule, barriers, clip) where the user set
/// nothing, lets of keys that exclude each other (train.steps, tokens, epochs; batch_tokens, batch_sequences) the one
/// set nearest to the user replace the others, and refuses combinations that cannot be had (e.g. sync with staleness 1,
/// global clipping in hybrid, deterministic with freshest, not exactly one of train.steps, train.tokens, train.epochs).
/// Throws InputError naming the origin and key. Checks only what needs no data and no rank count.
void resolve_presets(const OptionSet& options, Deck& deck);

/// The deck of an effective text, as OptionSet::effective writes it, without presets to resolve. Throws InputError
/// naming `name`.
Deck stored_deck(const std::string& text, const std::string& name);

}  // namespace hat
