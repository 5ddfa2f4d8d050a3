#include "engine/launch/system_info.h"

#include <gtest/gtest.h>

namespace sherd::engine {
namespace {

TEST(SystemInfo, ReadsProcessorQuotasOfBothKinds) {
  EXPECT_EQ(cores_of_quota("200000 100000\n"), 2.0);
  EXPECT_EQ(cores_of_quota("150000\n 100000\n"), 1.5);
  EXPECT_EQ(cores_of_quota("max 100000\n"), 0.0);
  EXPECT_EQ(cores_of_quota("-1 100000"), 0.0);
  EXPECT_EQ(cores_of_quota(" "), 0.0);
}

TEST(SystemInfo, ThereIsAtLeastOneCore) {
  EXPECT_GE(num_usable_cores(), 1);
}

}  // namespace
}  // namespace sherd::engine
