// SIGUSR2: one request, taken once.
#include "engine/launch/save_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

namespace sherd::engine {
namespace {

TEST(SaveSignal, IsARequestThatIsTakenOnce) {
  EXPECT_EXIT(
      {
        install_save_signal();
        const bool before = take_save_signal();
        ::raise(SIGUSR2);
        ::raise(SIGUSR2);
        const bool first = take_save_signal();
        const bool second = take_save_signal();
        std::exit(!before && first && !second ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(SaveSignal, DoesNothingBeforeARun) {
  EXPECT_EXIT(
      {
        ignore_save_signal();
        ::raise(SIGUSR2);
        install_save_signal();
        std::exit(take_save_signal() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

// Only its parent's is for all processes (tests/engine/processes/save_signals_test.cpp).
TEST(SaveSignal, CountsInAnyProcessIfItsParentDidntSendIt) {
  EXPECT_EXIT(
      {
        ::setenv("OMPI_COMM_WORLD_RANK", "1", 1);
        install_save_signal();
        ::raise(SIGUSR2);
        std::exit(take_save_signal() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sherd::engine
