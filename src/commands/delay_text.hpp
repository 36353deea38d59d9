#pragma once
#include <string>

#include "hat/config/deck.hpp"

namespace hat {

/// The remedies for delay that a deck asks for, in words for the start of a run: "predicted weights, first 120 steps
/// synchronous". Empty where there are none.
std::string describe_delay(const Deck& deck);

}  // namespace hat
