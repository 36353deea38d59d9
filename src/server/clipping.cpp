#include "server/clipping.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace hat {

namespace {
std::set<int> servers_of_block(const ShardPlan& shards, int64_t block) {
  std::set<int> servers;
  for (const int64_t part : shards.parts_of_block[static_cast<size_t>(block)]) {
    servers.insert(shards.parts[static_cast<size_t>(part)].server);
  }
  return servers;
}
}  // namespace

Clipping::Clipping(const RunPlan& plan, int server, const std::vector<double>& recent_norms,
                   std::function<void(const NormShare&, int)> post)
    : plan_(plan),
      server_(server),
      oldest_norm_(plan.first_step - static_cast<int64_t>(recent_norms.size())),
      post_(std::move(post)) {
  for (size_t i = 0; i < recent_norms.size(); ++i) totals_[oldest_norm_ + static_cast<int64_t>(i)] = recent_norms[i];
}

void Clipping::part_complete(int64_t part, int64_t step, double sum_of_squares) {
  std::map<int64_t, double>& own = own_[step];
  own[part] = sum_of_squares;
  if (plan_.deck.clip.rule == ClipRule::block) {  // a server owns at most one part of a block
    const int64_t block = plan_.shards.parts[static_cast<size_t>(part)].block;
    for (const int server : servers_of_block(plan_.shards, block)) {
      post_({.server = server_, .step = step, .block = block, .sum_of_squares = sum_of_squares}, server);
    }
  }
  if (own.size() == plan_.shards.parts_of_server[static_cast<size_t>(server_)].size()) {
    double sum = 0;
    for (const auto& [index, value] : own) sum += value;  // in part order, whatever the order of completion
    post_({.server = server_, .step = step, .block = NormShare::kAllBlocks, .sum_of_squares = sum}, 0);
    own_.erase(step);
  }
}

void Clipping::receive(const NormShare& share) {
  shares_[{share.step, share.block}][share.server] = share.sum_of_squares;
}

double Clipping::limit(double norm) const {
  const double allowed = plan_.deck.clip.norm;
  return norm > allowed ? allowed / norm : 1.0;
}

std::optional<double> Clipping::block_norm(int64_t block, int64_t step) const {
  const auto found = shares_.find({step, block});
  if (found == shares_.end() || found->second.size() != servers_of_block(plan_.shards, block).size()) {
    return std::nullopt;
  }
  double sum = 0;
  for (const auto& [server, value] : found->second) sum += value;
  return std::sqrt(sum);
}

std::optional<double> Clipping::factor(int64_t block, int64_t step) const {
  std::optional<double> norm;
  const auto total = [this](int64_t of_step) {
    const auto found = totals_.find(of_step);
    return found == totals_.end() ? std::nullopt : std::optional<double>(found->second);
  };
  switch (plan_.deck.clip.rule) {
    case ClipRule::none:
      return 1.0;
    case ClipRule::global:
      norm = total(step);
      break;
    case ClipRule::previous: {
      const int64_t complete = step - 1 - plan_.staleness_of(step);
      norm = total(complete >= oldest_norm_ ? complete : step);
      break;
    }
    case ClipRule::block:
      norm = block_norm(block, step);
      break;
  }
  return norm ? std::optional<double>(limit(*norm)) : std::nullopt;
}

void Clipping::forget_before(int64_t step) {
  totals_.erase(totals_.begin(), totals_.lower_bound(step - 1 - std::max<int64_t>(plan_.deck.staleness, 0)));
  shares_.erase(shares_.begin(), shares_.lower_bound({step, std::numeric_limits<int64_t>::min()}));
}

}  // namespace hat
