#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "hat/core/sequence.hpp"

namespace hat {

/// What the time of a unit depends on.
struct UnitSize {
  double tokens = 0;
  double area = 0;  ///< sum over the documents of tokens^2: causal attention; of a range of one, sequence_cut.hpp

  UnitSize& operator+=(const UnitSize& other) {
    tokens += other.tokens;
    area += other.area;
    return *this;
  }
};
UnitSize size_of(const Sequence& sequence);
UnitSize size_of(std::span<const Sequence> sequences);

/// Seconds of a unit on each worker, learnt while running: fixed + per_token * tokens + per_area * area, least squares
/// of the relative errors, older units forgotten at a constant rate, drawn towards the model's FLOP count (all of it
/// proportional to tokens + area_weight * area) where units do not tell the three apart.
class UnitCostModel {
 public:
  /// `area_weight`: FLOP of one unit of area over FLOP of one token.
  UnitCostModel(int workers, double area_weight);

  /// Predicted seconds on this worker; where it has computed nothing yet, as on the average of those that have; where
  /// none has, FLOP in units of one token's.
  double seconds(int64_t worker, const UnitSize& unit) const;
  /// The prediction is in seconds.
  bool knows_seconds() const { return observed_ > 0; }
  /// Relative cost, the same for all workers: what balancing equalises.
  double cost(const UnitSize& unit) const { return unit.tokens + area_weight_ * unit.area; }

  /// A unit took `seconds` on this worker. Its first one is left out: libraries and memory are new to it then, and a
  /// worker that seems slow would be given little to show the contrary.
  void observe(int64_t worker, const UnitSize& unit, double seconds);

  /// Mean of |predicted - measured| / measured over this worker's units, each predicted before it was measured; the
  /// newest count most. NaN before its third unit.
  double relative_error(int64_t worker) const;

 private:
  static constexpr int kTerms = 3;
  using Terms = std::array<double, kTerms>;
  struct Fit {
    std::array<Terms, kTerms> products{};  // sum of x x^T, x = terms over predicted seconds
    Terms sums{};                          // sum of x y, y = measured over predicted seconds
    double cost = 0;                       // sums for the rate of the prior
    double seconds = 0;
    Terms coefficients{};
    bool warm = false;  // has computed a unit
    int64_t observed = 0;
    double error = 0;
    double error_weight = 0;
  };
  Terms terms(const UnitSize& unit) const { return {1.0, unit.tokens, unit.area}; }
  void solve(Fit& fit) const;

  double area_weight_;
  std::vector<Fit> fits_;
  int64_t observed_ = 0;
  double total_cost_ = 0;  // of all workers, for those without a fit
  double total_seconds_ = 0;
};

}  // namespace hat
