#include "hat/server/run_result.hpp"

namespace hat {

nlohmann::ordered_json json_of(const SplitDecision& decision) {
  return {{"first_step", decision.first_step + 1},
          {"last_step", decision.end_step},
          {"tried", name_of(decision.tried)},
          {"taken", name_of(decision.taken)},
          {"utilization_planned", decision.utilization_of(Splitting::planned)},
          {"utilization_off", decision.utilization_of(Splitting::off)},
          {"gangs", decision.gangs}};
}

}  // namespace hat
