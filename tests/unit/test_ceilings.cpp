#include <gtest/gtest.h>

#include "hat/commands/ceilings.hpp"

namespace hat {
namespace {

// The loops prove their own results (measure_ceilings throws otherwise); here: the rates are of this world.
// They are not compared with each other: on a busy machine each is measured at another moment's speed.
TEST(Ceilings, ArePlausible) {
  const Ceilings ceilings = measure_ceilings(1);
  EXPECT_EQ(ceilings.cores, 1);
  EXPECT_GT(ceilings.fma_one_gflops, 0.5);
  // No core of today does more than 4 units x 16 lanes x 2 operations at 7 GHz.
  EXPECT_LT(ceilings.fma_one_gflops, 900.0);
  EXPECT_GT(ceilings.copy_gbytes_s, 0.1);
  EXPECT_GT(ceilings.triad_gbytes_s, 0.1);
  EXPECT_GT(ceilings.product_one_gflops, 0.05);
}

}  // namespace
}  // namespace hat
