// Signals to `sherd launch` before its processes can take them, and its end. A script in mpirun's place does what the
// test says.
#include <signal.h>

#include <filesystem>

#include "tests/engine/processes/mpi_runs.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

class LaunchSignals : public ProcessesTest {
 protected:
  // `script` in Perl: a shell can't catch a signal that it was started to ignore.
  void write_mpirun(const std::string& script) const {
    folder_.write("bin/mpirun",
                  "#!/usr/bin/perl\n$| = 1;\nsub wait_for { select(undef, undef, "
                  "undef, 0.01) until -e $_[0] }\n" +
                      script);
    std::filesystem::permissions(folder_.file("bin/mpirun"), std::filesystem::perms::owner_all);
  }
  // `act` is called with each line that the script prints on standard output.
  test::ProgramOutcome launch(
      const std::function<void(pid_t launch, const std::string& line)>& act = {},
      std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"PATH=" + folder_.file("bin") + ":/usr/bin:/bin",
                                      SHERD_PROGRAM, "launch", "-n", "2"};
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), {"--", "train", "mine.yaml"});
    return test::run_program("/usr/bin/env", words, act);
  }
  static constexpr const char* kNotBegun = " before the run began; start it again.\n";
};

// mpirun can pass a signal on only once it has begun itself: until then SIGUSR1 neither ends it nor gets lost.
TEST_F(LaunchSignals, ARequestThatMpirunCannotPassOnYetIsRepeated) {
  write_mpirun("print \"begun\\n\"; wait_for('" + folder_.file("go") +
               "'); $SIG{USR1} = sub { exit 75 }; sleep 1 while 1;\n");
  for (const int signal : {SIGTERM, SIGUSR1, SIGHUP}) {
    ::signal(SIGHUP, SIG_DFL);
    std::filesystem::remove(folder_.file("go"));
    const auto outcome = launch([&](pid_t program, const std::string& line) {
      if (line != "begun") return;
      ::kill(program, signal);
      folder_.write("go", "");
    });
    EXPECT_EQ(outcome.exit_code, 75) << outcome.err;
    EXPECT_EQ(outcome.err, fmt::format("sherd: SIG{}{}", ::sigabbrev_np(signal), kNotBegun));
  }
}

// Open MPI prints a line for each request. If the line brought the next request at once, processes would be asked
// thousands of times per second, and their save would never end.
TEST_F(LaunchSignals, WhatMpirunPrintsAboutARequestDoesNotBringTheNext) {
  write_mpirun(
      "my $heard = 0; $SIG{USR1} = sub { ++$heard; print STDERR \"heard\\n\" };\n"
      "print \"begun\\n\"; while ($heard == 0) { select(undef, undef, undef, 0.01) }\n"
      "my $end = time() + 2; while (time() < $end && $heard < 1000) {"
      " select(undef, undef, undef, 0.01) }\n"
      "print \"$heard\\n\"; exit 75;\n");
  int heard = 0;
  const auto outcome = launch([&](pid_t program, const std::string& line) {
    if (line == "begun") {
      ::kill(program, SIGTERM);
    } else {
      heard = std::stoi(line);
    }
  });
  EXPECT_EQ(outcome.exit_code, 75);
  EXPECT_GE(heard, 1);
  EXPECT_LE(heard, 20) << "at most every 100 ms, for 2 s";
}

// A process that has just been started has no handlers yet, and mpirun returns 128 and the signal.
TEST_F(LaunchSignals, ProcessesThatEndByTheRequestItselfEndAsAsked) {
  write_mpirun("$SIG{USR1} = sub { exit 138 }; print \"begun\\n\"; sleep 1 while 1;\n");
  const auto outcome = launch([](pid_t program, const std::string&) { ::kill(program, SIGTERM); },
                              {"--restarts", "3"});
  EXPECT_EQ(outcome.exit_code, 75);
  EXPECT_EQ(outcome.err, std::string("sherd: SIGTERM") + kNotBegun);
}

TEST_F(LaunchSignals, WhatAProcessHasSaidIsntSaidAgain) {
  write_mpirun(
      "$SIG{USR1} = sub { print STDERR \"sherd: SIGUSR1 after step 3\\n\"; exit 75 };\n"
      "print \"begun\\n\"; sleep 1 while 1;\n");
  const auto outcome = launch([](pid_t program, const std::string&) { ::kill(program, SIGTERM); });
  EXPECT_EQ(outcome.exit_code, 75);
  EXPECT_EQ(outcome.err, "sherd: SIGUSR1 after step 3\n");
}

TEST_F(LaunchSignals, AKilledProcessThatNobodyCouldNameIsSaid) {
  write_mpirun("exit 137;\n");
  auto outcome = launch();
  EXPECT_EQ(outcome.exit_code, 137);
  EXPECT_EQ(outcome.err,
            "sherd: a process was ended by SIGKILL before the others could name it (mpirun: code "
            "137).\n");
  write_mpirun(
      "print STDERR '-' x 74, \"\\nmpirun noticed that process rank 1 with PID 0 on node a exited "
      "on "
      "signal 9 (Killed).\\n\", '-' x 74, \"\\n\"; exit 137;\n");
  EXPECT_EQ(launch().err,
            "sherd: process 1 on a was ended by SIGKILL before the others could name it (mpirun: "
            "code 137).\n");
  write_mpirun("print STDERR \"sherd: rank 1 on a ended without a word\\n\"; exit 137;\n");
  outcome = launch();
  EXPECT_EQ(outcome.exit_code, 137);
  EXPECT_EQ(outcome.err, "sherd: rank 1 on a ended without a word\n");
}

// The terminal's Ctrl-C reaches mpirun too, a process's signal only the launcher.
TEST_F(LaunchSignals, AnInterruptOfTheLauncherAloneReachesMpirun) {
  write_mpirun("$SIG{INT} = sub { exit 1 }; print \"begun\\n\"; sleep 1 while 1;\n");
  const auto outcome = launch([](pid_t program, const std::string&) { ::kill(program, SIGINT); });
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.err, "");
}

// The script holds the other end of the pipe that is read here: the test ends when it does.
TEST_F(LaunchSignals, MpirunEndsWithItsLauncherHoweverThatEnds) {
  write_mpirun("print \"begun\\n\"; sleep 1 while 1;\n");
  const auto outcome = launch([](pid_t program, const std::string&) { ::kill(program, SIGKILL); });
  EXPECT_EQ(outcome.exit_code, -1);
}

}  // namespace
}  // namespace sherd::testing
