#include "hat/metrics/account.hpp"

#include <numeric>

namespace hat {

namespace {
double of(const AccountReading& reading, Activity activity) {
  return reading.seconds.empty() ? 0.0 : reading.seconds[static_cast<size_t>(activity)];
}

void add_scaled(std::vector<double>& sum, double factor, const std::vector<double>& values) {
  if (sum.size() < values.size()) sum.resize(values.size(), 0.0);
  for (size_t i = 0; i < values.size(); ++i) sum[i] += factor * values[i];
}

void add_scaled(AccountReading& sum, double factor, const AccountReading& reading) {
  add_scaled(sum.seconds, factor, reading.seconds);
  add_scaled(sum.block_wait_seconds, factor, reading.block_wait_seconds);
  sum.mpi_seconds += factor * reading.mpi_seconds;
  sum.barrier_transfer_seconds += factor * reading.barrier_transfer_seconds;
  sum.gang_transfer_seconds += factor * reading.gang_transfer_seconds;
}
}  // namespace

double wall_seconds(const AccountReading& reading) {
  return std::accumulate(reading.seconds.begin(), reading.seconds.end(), 0.0);
}

double utilization(const AccountReading& reading) {
  const double wall = wall_seconds(reading);
  return wall > 0 ? of(reading, Activity::compute) / wall : 0.0;
}

double communication_share(const AccountReading& reading) {
  const double wall = wall_seconds(reading);
  const double communication = of(reading, Activity::wait_pull) + of(reading, Activity::push_blocked) +
                               reading.barrier_transfer_seconds + reading.gang_transfer_seconds + reading.mpi_seconds;
  return wall > 0 ? communication / wall : 0.0;
}

AccountReading difference(const AccountReading& later, const AccountReading& earlier) {
  AccountReading result = later;
  add_scaled(result, -1.0, earlier);
  return result;
}

void add(AccountReading& sum, const AccountReading& reading) { add_scaled(sum, 1.0, reading); }

}  // namespace hat
