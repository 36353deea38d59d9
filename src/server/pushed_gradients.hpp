#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hat/checkpoint/gradient_log_reader.hpp"
#include "hat/core/error.hpp"
#include "hat/gradient/run_plan.hpp"

namespace hat {

/// The pushes that a server logged in a stretch of steps, from which the gradients of its updates are put together as
/// the run did: added up in their order, or (unbounded) one for each update.
class PushedGradients {
 public:
  using Push = GradientLogReader::Push;
  /// Puts the values of a push into the vector.
  using Reader = std::function<void(const Push&, std::vector<float>&)>;

  /// `log_name` stands in errors.
  PushedGradients(const RunPlan& plan, std::string log_name, std::vector<Push> pushes);

  /// What the update is made of, in the order of adding; valid until `take`. Throws InputError when pushes are missing.
  std::vector<const Push*> pushes_of(const LoggedUpdate& update) const;
  /// Once for each update, in the order of the updates.
  void take(const LoggedUpdate& update, const Reader& read, std::vector<float>& gradient);

 private:
  using Key = std::pair<int64_t, int64_t>;  // block, step; unbounded: block, 0
  Key key(int64_t block, int64_t step) const { return {block, plan_.unbounded() ? 0 : step}; }
  InputError missing(const LoggedUpdate& update) const;

  const RunPlan& plan_;
  std::string log_name_;
  std::map<Key, std::deque<Push>> pushes_;
};

}  // namespace hat
