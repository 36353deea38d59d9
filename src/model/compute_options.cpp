#include "hat/model/compute_options.hpp"

namespace hat {

const char* name_of(Element arithmetic) { return arithmetic == Element::fp32 ? "fp32" : "bf16"; }

const char* name_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::automatic:
      return "auto";
    case Recompute::none:
      return "none";
    case Recompute::inner:
      return "inner";
    case Recompute::full:
      break;
  }
  return "full";
}

}  // namespace hat
