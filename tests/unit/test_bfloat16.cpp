#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "hat/core/bfloat16.hpp"
#include "hat/core/random.hpp"

namespace hat {
namespace {

float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t rounded(float x) { return to_bfloat16(x).bits; }

bool is_nan(uint32_t bits) { return (bits & 0x7fffU) > 0x7f80U; }

TEST(Bfloat16, WideningIsTheUpperHalfAndComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = to_float(bfloat16{static_cast<uint16_t>(bits)});
    EXPECT_EQ(std::bit_cast<uint32_t>(x), bits << 16);
    if (is_nan(bits)) {
      EXPECT_TRUE(std::isnan(x)) << std::hex << bits;
    } else {
      EXPECT_EQ(rounded(x), bits) << std::hex << bits;
    }
  }
}

// Every finite bfloat16 of either sign and what lies between it and the next one further from zero, denormals included.
TEST(Bfloat16, RoundsToTheNearestAndTiesToEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7f80U) == 0x7f80U) continue;
    const uint32_t here = bits << 16;
    EXPECT_EQ(rounded(float_of(here | 0x0001U)), bits);
    EXPECT_EQ(rounded(float_of(here | 0x7fffU)), bits);
    EXPECT_EQ(rounded(float_of(here | 0x8000U)), bits % 2 == 0 ? bits : bits + 1) << "tie at " << std::hex << bits;
    EXPECT_EQ(rounded(float_of(here | 0x8001U)), bits + 1);
    EXPECT_EQ(rounded(float_of(here | 0xffffU)), bits + 1);
  }
}

TEST(Bfloat16, ErrorIsAtMostHalfAStep) {
  for (uint64_t i = 0; i < 10'000; ++i) {
    const auto x = static_cast<float>(random_normal(1, 2, i));
    const double error = static_cast<double>(to_float(to_bfloat16(x))) - static_cast<double>(x);
    EXPECT_LE(std::abs(error), std::abs(static_cast<double>(x)) / 256.0) << x;
  }
}

TEST(Bfloat16, SpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(rounded(0.0F), 0x0000U);
  EXPECT_EQ(rounded(-0.0F), 0x8000U);
  EXPECT_EQ(rounded(1.0F), 0x3f80U);
  EXPECT_EQ(rounded(infinity), 0x7f80U);
  EXPECT_EQ(rounded(-infinity), 0xff80U);
  EXPECT_EQ(rounded(std::numeric_limits<float>::max()), 0x7f80U) << "nearer to 2^128 than to the largest bfloat16";
  EXPECT_EQ(rounded(float_of(0x7f7f7fffU)), 0x7f7fU);
  EXPECT_EQ(rounded(std::numeric_limits<float>::denorm_min()), 0x0000U);
  EXPECT_EQ(rounded(float_of(0x00018000U)), 0x0002U) << "a tie of denormals";
  // Payloads in the lower half alone, and with all bits set: rounding up would make infinity, or zero.
  for (const uint32_t nan : {0x7f800001U, 0x7fc00000U, 0x7fffffffU, 0xff800001U, 0xffffffffU}) {
    EXPECT_TRUE(is_nan(rounded(float_of(nan)))) << std::hex << nan;
    EXPECT_EQ(rounded(float_of(nan)) & 0x8000U, nan >> 16 & 0x8000U) << "the sign stays";
  }
}

// Vector code and its remainder give what the scalar functions give.
TEST(Bfloat16, ArraysAreConvertedElementByElement) {
  for (const size_t count : {0, 1, 15, 16, 17, 31, 33, 1000}) {
    std::vector<float> from(count);
    for (size_t i = 0; i < count; ++i) {
      from[i] =
          i % 7 == 3 ? float_of(0x7f800000U + static_cast<uint32_t>(i)) : static_cast<float>(random_normal(3, 4, i));
    }
    std::vector<bfloat16> narrow(count);
    to_bfloat16(from, narrow);
    std::vector<float> wide(count);
    to_float(narrow, wide);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(narrow[i].bits, rounded(from[i])) << i << " of " << count;
      EXPECT_EQ(std::bit_cast<uint32_t>(wide[i]), static_cast<uint32_t>(narrow[i].bits) << 16) << i << " of " << count;
    }
  }
}

}  // namespace
}  // namespace hat
