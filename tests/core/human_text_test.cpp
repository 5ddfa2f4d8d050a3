#include "core/human_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace sherd {
namespace {

TEST(HumanBytes, HasTwoOrThreeDigits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.0 KiB");
  EXPECT_EQ(human_bytes(1536 << 10), "1.5 MiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(human_bytes(std::int64_t{80} << 30), "80 GiB");
  EXPECT_EQ(human_bytes(INT64_MAX), "8.0 EiB");
}

TEST(HumanRate, HasThreeDigits) {
  EXPECT_EQ(human_rate(0), "0");
  EXPECT_EQ(human_rate(812.4), "812");
  EXPECT_EQ(human_rate(999.6), "1.00k");
  EXPECT_EQ(human_rate(41234), "41.2k");
  EXPECT_EQ(human_rate(99960), "100k");
  EXPECT_EQ(human_rate(1.25e6), "1.25M");
  EXPECT_EQ(human_rate(std::nan("")), "?");
}

TEST(HumanDuration, HasTwoUnits) {
  EXPECT_EQ(human_duration(Seconds(-1)), "0s");
  EXPECT_EQ(human_duration(Seconds(8.4)), "8s");
  EXPECT_EQ(human_duration(Seconds(59.6)), "1m 00s");
  EXPECT_EQ(human_duration(Seconds(72)), "1m 12s");
  EXPECT_EQ(human_duration(Seconds(3 * 3600 + 5 * 60)), "3h 05m");
  EXPECT_EQ(human_duration(Seconds(52 * 3600)), "2d 4h");
  EXPECT_EQ(human_duration(Seconds(INFINITY)), "?");
}

TEST(HumanMilliseconds, TurnsIntoSeconds) {
  EXPECT_EQ(human_milliseconds(0), "0.0 ms");
  EXPECT_EQ(human_milliseconds(9.94), "9.9 ms");
  EXPECT_EQ(human_milliseconds(9.96), "10 ms");
  EXPECT_EQ(human_milliseconds(1300), "1.3 s");
}

}  // namespace
}  // namespace sherd
