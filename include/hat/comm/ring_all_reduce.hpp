#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "hat/comm/communicator.hpp"

namespace hat {

/// Part `index` of `count` elements split into `parts` runs whose sizes differ by at most one.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};
Range split_evenly(int64_t count, int64_t parts, int64_t index);

/// Sum of `data` over all ranks of a communicator, in place: reduce-scatter round the ring, then all-gather
/// (Patarasuk and Yuan 2009); each rank sends 2 (p - 1) / p of the data. An asynchronous operation: `step` never
/// blocks. The order of adding depends only on the rank numbers, so equal inputs give equal bits.
///
/// Every rank of the communicator starts the rings of one tag in the same order; rings of different tags may overlap.
/// `data` must stay in place until `step` returned true.
class RingAllReduce {
 public:
  RingAllReduce(const Communicator& ring, std::span<float> data, int tag);

  /// Advances as far as it can without waiting. True once every rank's sum is in `data`.
  bool step();
  /// In the all-gather phase. A rank gets there when every rank has entered the ring, and what is left is half of the
  /// messages.
  bool gathering() const { return round_ >= ring_->size() - 1 && round_ < 2 * (ring_->size() - 1); }

 private:
  void start_round();
  void finish_round();
  Range chunk(int index) const;

  const Communicator* ring_;
  std::span<float> data_;
  int tag_;
  int round_ = 0;  // 0 .. p - 2 reduce-scatter, p - 1 .. 2 p - 3 all-gather
  std::vector<float> received_;
  Request send_;
  Request receive_;
};

}  // namespace hat
