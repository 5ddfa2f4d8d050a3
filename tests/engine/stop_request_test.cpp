#include "engine/stop_request.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>

namespace sherd::engine {
namespace {

TEST(StopRequest, TheFirstSignalOnlySetsTheFlag) {
  EXPECT_EXIT(
      {
        install_stop_handlers();
        const bool before = (stop_request() == StopRequest::kInterrupt);
        ::raise(SIGINT);
        std::exit(!before && (stop_request() == StopRequest::kInterrupt) ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(StopRequest, TheSecondSignalKills) {
  EXPECT_EXIT(
      {
        install_stop_handlers();
        ::raise(SIGINT);
        ::raise(SIGINT);
        std::exit(0);
      },
      testing::KilledBySignal(SIGINT), "");
}

TEST(StopRequest, InstallingAgainStartsOver) {
  EXPECT_EXIT(
      {
        install_stop_handlers();
        ::raise(SIGINT);
        install_stop_handlers();
        const bool before = (stop_request() == StopRequest::kInterrupt);
        ::raise(SIGINT);
        std::exit(!before && (stop_request() == StopRequest::kInterrupt) ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(StopRequest, SigtermAndSigusr1AskForARequeueHoweverOften) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    EXPECT_EXIT(
        {
          install_stop_handlers(std::chrono::seconds(1000));
          ::raise(signal);
          ::raise(signal);
          std::exit(stop_request() == StopRequest::kRequeue ? 0 : 1);
        },
        testing::ExitedWithCode(0), "");
  }
}

TEST(StopRequest, SigtermAfterCtrlCStillAsksForARequeue) {
  EXPECT_EXIT(
      {
        install_stop_handlers(std::chrono::seconds(1000));
        ::raise(SIGINT);
        ::raise(SIGTERM);
        std::exit(stop_request() == StopRequest::kRequeue ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(StopRequest, WithoutADeadlineSigtermKills) {
  EXPECT_EXIT(
      {
        install_stop_handlers(std::chrono::seconds(1000));
        install_stop_handlers();
        ::raise(SIGTERM);
        std::exit(0);
      },
      testing::KilledBySignal(SIGTERM), "");
}

TEST(StopRequest, AtTheDeadlineTheProcessEndsWithTheRequeueCodeAndSaysSo) {
  EXPECT_EXIT(
      {
        install_stop_handlers(std::chrono::seconds(1));
        ::raise(SIGUSR1);
        while (true) ::pause();
      },
      testing::ExitedWithCode(75), "stop_deadline passed before a checkpoint was written");
}

}  // namespace
}  // namespace sherd::engine
