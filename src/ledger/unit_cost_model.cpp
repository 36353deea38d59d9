#include "hat/ledger/unit_cost_model.hpp"

#include <cmath>
#include <limits>
#include <utility>

namespace hat {

namespace {

constexpr double kForget = 0.95;       // weight of a unit against the one after it: about the last 20 count
constexpr double kPriorWeight = 0.01;  // of the FLOP count, in units of observations

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
  return {.tokens = n, .area = n * n};
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
  if (fit.observed == 0) return observed_ > 0 ? cost(unit) * total_seconds_ / total_cost_ : cost(unit);
  const Terms x = terms(unit);
  double seconds = 0;
  for (size_t i = 0; i < x.size(); ++i) seconds += fit.coefficients[i] * x[i];
  return seconds;
}

// Ridge regression towards (0, rate, rate * area_weight). Each coefficient is scaled by its prior, so that one weight
// fits all three; the fixed part's scale is a small unit's time. Time that does not grow with a term has none of it: a
// negative coefficient is put to zero and the others are fitted again.
void UnitCostModel::solve(Fit& fit) const {
  const double rate = fit.seconds / fit.cost;
  const Terms prior{0.0, rate, rate * area_weight_};
  const Terms scale{0.1 * fit.seconds / fit.error_weight, rate, rate * area_weight_};
  Terms penalty{};
  for (size_t i = 0; i < scale.size(); ++i) {
    constexpr double kFixed = 1e12;  // a term that cannot be had: the model has no such cost
    penalty[i] = scale[i] > 0 ? kPriorWeight / (scale[i] * scale[i]) : kFixed;
  }
  for (int round = 0; round < kTerms; ++round) {
    std::array<Terms, kTerms> a = fit.products;
    Terms b = fit.sums;
    for (size_t i = 0; i < b.size(); ++i) {
      a[i][i] += penalty[i];
      b[i] += penalty[i] * (penalty[i] > 1e20 ? 0.0 : prior[i]);
    }
    fit.coefficients = solve_system(a, b);
    bool negative = false;
    for (size_t i = 0; i < b.size(); ++i) {
      if (fit.coefficients[i] >= 0) continue;
      negative = true;
      fit.coefficients[i] = 0;
      penalty[i] = 1e30;
    }
    if (!negative) return;
  }
}

void UnitCostModel::observe(int64_t worker, const UnitSize& unit, double seconds) {
  if (!(seconds > 0)) return;
  Fit& fit = fits_[static_cast<size_t>(worker)];
  if (!std::exchange(fit.warm, true)) return;
  const double error = std::abs(this->seconds(worker, unit) - seconds) / seconds;
  const bool predicted = fit.observed > 0;
  for (Terms& row : fit.products) {
    for (double& value : row) value *= kForget;
  }
  for (double& value : fit.sums) value *= kForget;
  fit.cost = fit.cost * kForget + cost(unit);
  fit.seconds = fit.seconds * kForget + seconds;
  Terms x = terms(unit);
  for (double& value : x) value /= seconds;
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < x.size(); ++j) fit.products[i][j] += x[i] * x[j];
    fit.sums[i] += x[i];
  }
  fit.error = fit.error * kForget + (predicted ? error : 0.0);
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
