#include <gtest/gtest.h>

#include "hat/core/duration.hpp"

namespace hat {
namespace {

TEST(Duration, IsReadAsSlurmAndPeopleWriteIt) {
  EXPECT_EQ(parse_duration("0"), 0);
  EXPECT_EQ(parse_duration("90"), 90);
  EXPECT_EQ(parse_duration("7.5"), 7.5);
  EXPECT_EQ(parse_duration("4:59"), 4 * 60 + 59);
  EXPECT_EQ(parse_duration("1:02:03"), 3723);
  EXPECT_EQ(parse_duration("100:00:00"), 360000);
  EXPECT_EQ(parse_duration("2-01"), 2 * 86400 + 3600);
  EXPECT_EQ(parse_duration("2-01:30"), 2 * 86400 + 5400);
  EXPECT_EQ(parse_duration("1-23:59:59"), 2 * 86400 - 1);
}

TEST(Duration, RefusesEverythingElse) {
  for (const char* text : {"",
                           " ",
                           "-",
                           ":",
                           "-1",
                           "+5",
                           "1h",
                           "nan",
                           "inf",
                           "1e3",
                           ".",
                           "1.2.3",
                           "1:60",
                           "1:2:60",
                           "1:60:00",
                           "1:2:3:4",
                           "1-",
                           "-1:00",
                           "1-24",
                           "1-1:2:3:4",
                           "1-2-3",
                           "1:",
                           ":1",
                           "1.5:00",
                           "UNLIMITED",
                           "NOT_SET",
                           "INVALID",
                           "99999999999999999999",
                           "9999999999:00:00",
                           "99999999-00"}) {
    EXPECT_FALSE(parse_duration(text)) << text;
  }
}

TEST(Duration, IsWrittenInHoursMinutesSeconds) {
  EXPECT_EQ(duration_text(0), "0:00:00");
  EXPECT_EQ(duration_text(59.9), "0:00:59");
  EXPECT_EQ(duration_text(3723), "1:02:03");
  EXPECT_EQ(duration_text(100000), "27:46:40");
  EXPECT_EQ(duration_text(-5), "0:00:00");
}

}  // namespace
}  // namespace hat
