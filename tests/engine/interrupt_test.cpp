#include "engine/interrupt.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>

namespace sherd::engine {
namespace {

TEST(Interrupt, TheFirstSignalOnlySetsTheFlag) {
  EXPECT_EXIT(
      {
        install_interrupt_handler();
        const bool before = interrupted();
        ::raise(SIGINT);
        std::exit(!before && interrupted() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(Interrupt, TheSecondSignalKills) {
  EXPECT_EXIT(
      {
        install_interrupt_handler();
        ::raise(SIGINT);
        ::raise(SIGINT);
        std::exit(0);
      },
      testing::KilledBySignal(SIGINT), "");
}

TEST(Interrupt, InstallingAgainStartsOver) {
  EXPECT_EXIT(
      {
        install_interrupt_handler();
        ::raise(SIGINT);
        install_interrupt_handler();
        const bool before = interrupted();
        ::raise(SIGINT);
        std::exit(!before && interrupted() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sherd::engine
