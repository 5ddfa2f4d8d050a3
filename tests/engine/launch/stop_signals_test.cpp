#include "engine/launch/stop_signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "core/error.h"

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

TEST(StopRequest, SigtermSigusr1AndSighupAskForARequeueHoweverOften) {
  for (const int signal : {SIGTERM, SIGUSR1, SIGHUP}) {
    EXPECT_EXIT(
        {
          ::signal(SIGHUP, SIG_DFL);
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

TEST(StopRequest, ASighupThatTheProcessWasStartedToIgnoreStaysIgnored) {
  EXPECT_EXIT(
      {
        ::signal(SIGHUP, SIG_IGN);
        install_stop_handlers(std::chrono::seconds(1000));
        ::raise(SIGHUP);
        install_stop_handlers();
        ::raise(SIGHUP);
        std::exit(stop_request() == StopRequest::kNone ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(StopRequest, NamesTheSignalThatAskedFirst) {
  EXPECT_EXIT(
      {
        ::signal(SIGHUP, SIG_DFL);
        install_stop_handlers(std::chrono::seconds(1000));
        ::raise(SIGHUP);
        ::raise(SIGTERM);
        try {
          throw_stopped(stop_request(), "after step 3");
        } catch (const Requeue& error) {
          std::exit(std::string(error.what()) == "SIGHUP after step 3" ? 0 : 1);
        }
      },
      testing::ExitedWithCode(0), "");
}

TEST(StopRequest, AClosedPipeAndAFileThatIsTooLargeAreErrorsOfTheWrite) {
  EXPECT_EXIT(
      {
        outlive_lost_output();
        int ends[2];
        const bool made = ::pipe(ends) == 0 && ::close(ends[0]) == 0;
        const bool refused = ::write(ends[1], "x", 1) < 0 && errno == EPIPE;
        ::raise(SIGXFSZ);
        std::exit(made && refused ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(StopRequest, AtTheDeadlineTheProcessEndsWithTheRequeueCodeAndSaysSo) {
  EXPECT_EXIT(
      {
        install_stop_handlers(std::chrono::seconds(1));
        ::raise(SIGUSR1);
        while (true) ::pause();
      },
      testing::ExitedWithCode(75), "stop_deadline passed before a checkpoint was written");
  EXPECT_EXIT(
      {
        install_stop_handlers(std::chrono::seconds(1));
        note_saved();
        ::raise(SIGUSR1);
        while (true) ::pause();
      },
      testing::ExitedWithCode(75), "the last step is saved, and checkpoint.stop_deadline passed");
}

// Nothing is there to be saved yet.
TEST(StopRequest, BeforeARunBeginsASignalEndsTheProgramWithOneLine) {
  for (const int signal : {SIGTERM, SIGUSR1, SIGHUP}) {
    EXPECT_EXIT(
        {
          ::signal(SIGHUP, SIG_DFL);
          end_at_stop_signals();
          ::raise(signal);
          std::exit(0);
        },
        testing::ExitedWithCode(75),
        "^sherd: SIG(TERM|USR1|HUP) before the run began; start it again\\.\n$");
  }
}

TEST(StopRequest, OfSeveralProcessesThatAParentAsksOneSaysSo) {
  const auto raised = [](const StopSpeaker& speaker, int signal) {
    end_at_stop_signals(speaker);
    ::raise(signal);  // from this process
    std::exit(0);
  };
  const auto by_parent = [&](bool speaks, int signal) {
    raised({speaks, ::getpid(), true}, signal);
  };
  EXPECT_EXIT(by_parent(true, SIGUSR1), testing::ExitedWithCode(75), "^sherd: SIGUSR1 ");
  EXPECT_EXIT(by_parent(false, SIGUSR1), testing::ExitedWithCode(75), "^$");
  EXPECT_EXIT(by_parent(true, SIGTERM), testing::ExitedWithCode(75), "^$");  // mpirun ends all
  EXPECT_EXIT(raised({false, 1, true}, SIGTERM), testing::ExitedWithCode(75), "^sherd: SIGTERM ");
}

TEST(StopRequest, ANotedSignalIsAskedForOnceTheRunBegins) {
  EXPECT_EXIT(
      {
        note_stop_signals();
        ::raise(SIGTERM);
        install_stop_handlers(std::chrono::seconds(1000));
        const bool asked = stop_request() == StopRequest::kRequeue;
        std::exit(asked && asked_by(stop_request()) == "SIGTERM" && take_noted_stop() == 0 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sherd::engine
