#include "hat/ledger/unit_cost_model.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace hat {

namespace {

constexpr double kForget = 0.95;       // weight of a unit against the one after it: about the last 20 count
constexpr double kPriorWeight = 0.01;  // of the FLOP count, in units of observations
constexpr double kMostSurprise = 4;    // a unit counts as at most so many times longer or shorter than predicted
constexpr double kLeastShare = 0.1;    // of the average worker's seconds: no worker is taken to be faster than that

/// Gaussian elimination with pivoting of a symmetric positive definite system.
template <size_t n>
std::array<double, n> solve_system(std::array<std::array<double, n>, n> a, std::array<double, n> b) {
  for (size_t i = 0; i < n; ++i) {
    size_t pivot = i;
    for (size_t r = i + 1; r < n; ++r) {
      if (std::abs(a[r][i]) > std::abs(a[pivot][i])) pivot = r;
    }
    std::swap(a[i], a[pivot]);
    std::swap(b[i], b[pivot]);
    for (size_t r = i + 1; r < n; ++r) {
      const double factor = a[r][i] / a[i][i];
      for (size_t c = i; c < n; ++c) a[r][c] -= factor * a[i][c];
      b[r] -= factor * b[i];
    }
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t c = i + 1; c < n; ++c) b[i] -= a[i][c] * b[c];
    b[i] /= a[i][i];
  }
  return b;
}

}  // namespace

UnitSize size_of(const Sequence& sequence) {
  const auto n = static_cast<double>(sequence.length);
  return {.tokens = n, .area = n * (n + 2 * static_cast<double>(sequence.earlier))};
}

UnitSize size_of(std::span<const Sequence> sequences) {
  UnitSize unit;
  for (const Sequence& sequence : sequences) unit += size_of(sequence);
  return unit;
}

UnitCostModel::UnitCostModel(int workers, double area_weight)
    : area_weight_(area_weight), fits_(static_cast<size_t>(workers)) {}

double UnitCostModel::seconds(int64_t worker, const UnitSize& unit) const {
  const Fit& fit = fits_[static_cast<size_t>(worker)];
  const double average = observed_ > 0 ? cost(unit) * total_seconds_ / total_cost_ : cost(unit);
  if (fit.observed == 0) return average;
  const Terms x = terms(unit);
  double seconds = 0;
  for (size_t i = 0; i < x.size(); ++i) seconds += fit.coefficients[i] * x[i];
  return std::max(seconds, kLeastShare * average);
}

// Ridge regression towards (0, rate, rate * area_weight). Each coefficient is scaled by its prior, so that one weight
// fits all three; the fixed part's scale is a small unit's time. Time that does not grow with a term has none of it: a
// negative coefficient is put to zero and the others are fitted again.
void UnitCostModel::solve(Fit& fit) const {
  const double rate = fit.seconds / fit.cost;
  constexpr double kNone = 1e30;  // penalty of a term that is zero
  const Terms prior{0.0, rate, rate * area_weight_};
  const Terms scale{0.1 * fit.seconds / fit.error_weight, rate, rate * area_weight_};
  Terms penalty{};
  for (size_t i = 0; i < scale.size(); ++i) {
    penalty[i] = scale[i] > 0 ? kPriorWeight / (scale[i] * scale[i]) : kNone;
  }
  for (int round = 0; round < kTerms; ++round) {
    std::array<Terms, kTerms> a = fit.products;
    Terms b = fit.sums;
    for (size_t i = 0; i < b.size(); ++i) {
      a[i][i] += penalty[i];
      if (penalty[i] != kNone) b[i] += penalty[i] * prior[i];
    }
    fit.coefficients = solve_system(a, b);
    bool negative = false;
    for (size_t i = 0; i < b.size(); ++i) {
      if (fit.coefficients[i] >= 0) continue;
      negative = true;
      fit.coefficients[i] = 0;
      penalty[i] = kNone;
    }
    if (!negative) return;
  }
}

void UnitCostModel::observe(int64_t worker, const UnitSize& unit, double seconds) {
  if (!(seconds > 0)) return;
  Fit& fit = fits_[static_cast<size_t>(worker)];
  if (!std::exchange(fit.warm, true)) return;
  const double predicted = this->seconds(worker, unit);
  // The first unit that counts is held against nothing. If it was far too short, its relative error would outweigh
  // those of many others, and the worker would seem to be so quick that it is left everything.
  if (fit.observed == 1 && seconds > kMostSurprise * predicted) fit = Fit{.warm = true};
  const bool is_predicted = fit.observed > 0;
  const double error = std::abs(predicted - seconds) / seconds;
  // A clock that jumped or a machine that stood still must not outweigh all other units.
  if (is_predicted) seconds = std::clamp(seconds, predicted / kMostSurprise, predicted * kMostSurprise);
  // Errors relative to what was predicted: relative to what was measured, units that were short by chance would weigh
  // more than those that were long.
  const double unit_of_error = is_predicted ? predicted : seconds;
  for (Terms& row : fit.products) {
    for (double& value : row) value *= kForget;
  }
  for (double& value : fit.sums) value *= kForget;
  fit.cost = fit.cost * kForget + cost(unit);
  fit.seconds = fit.seconds * kForget + seconds;
  Terms x = terms(unit);
  for (double& value : x) value /= unit_of_error;
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < x.size(); ++j) fit.products[i][j] += x[i] * x[j];
    fit.sums[i] += x[i] * seconds / unit_of_error;
  }
  fit.error = fit.error * kForget + (is_predicted ? error : 0.0);
  fit.error_weight = fit.error_weight * kForget + 1.0;
  ++fit.observed;
  ++observed_;
  total_cost_ += cost(unit);
  total_seconds_ += seconds;
  solve(fit);
}

double UnitCostModel::relative_error(int64_t worker) const {
  const Fit& fit = fits_[static_cast<size_t>(worker)];
  if (fit.observed < 2) return std::numeric_limits<double>::quiet_NaN();
  return fit.error / (fit.error_weight - std::pow(kForget, static_cast<double>(fit.observed - 1)));
}

}  // namespace hat
