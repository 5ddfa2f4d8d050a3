// One command: what it gets, what its end is, and that nothing of it stays.
#include "engine/hooks/command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

using Kind = CommandEnd::Kind;
constexpr std::chrono::milliseconds kLong{600'000};

struct Outcome {
  CommandEnd end;
  std::string output;
};
Outcome run(const std::string& text, std::chrono::milliseconds timeout = kLong,
            const std::string& input = "", std::vector<std::string> environment = {}) {
  Outcome outcome;
  outcome.end =
      run_command({.text = text,
                   .environment = std::move(environment),
                   .input = input,
                   .timeout = timeout,
                   .on_output = [&](std::string_view piece) { outcome.output += piece; }});
  return outcome;
}

/// Whether a process computes or waits: not whether its number is still known.
bool is_alive(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::string number, name, state;
  return (file >> number >> name >> state) && state != "Z" && state != "X";
}

TEST(HookCommand, HasItsInputItsVariablesAndItsOutput) {
  const Outcome outcome = run("cat; echo \"$FACT\"", kLong, "a line\n", {"FACT=7", "PATH=/bin"});
  EXPECT_TRUE(outcome.end.succeeded()) << outcome.end.text(kLong);
  EXPECT_EQ(outcome.output, "a line\n7\n");
}

TEST(HookCommand, AnEndHasItsCodeAndTheLastLineOfStandardError) {
  const Outcome outcome =
      run("echo out; echo first >&2; printf 'the disk\\tis full\\n \\n' >&2; exit 3");
  EXPECT_FALSE(outcome.end.succeeded());
  EXPECT_EQ(outcome.end.text(kLong), "ended with code 3: the disk is full");
  EXPECT_NE(outcome.output.find("out\n"), std::string::npos);
  EXPECT_NE(outcome.output.find("first\n"), std::string::npos);
  EXPECT_EQ(run("kill -SEGV $$").end.text(kLong), "was killed by SIGSEGV");
  EXPECT_EQ(run("printf %01000d 1 >&2; exit 1").end.last_error_line.size(), 300u);
}

TEST(HookCommand, ThatIsMissingIsAnEndLikeOthers) {
  const Outcome outcome = run("/no/such/program");
  EXPECT_EQ(outcome.end.kind, Kind::kExited);
  EXPECT_EQ(outcome.end.code, 127);
  EXPECT_NE(outcome.end.last_error_line.find("not found"), std::string::npos)
      << outcome.end.last_error_line;
}

TEST(HookCommand, InputThatNobodyReadsIsNoProblem) {
  EXPECT_TRUE(run("exit 0", kLong, std::string(std::size_t{4} << 20, 'x')).end.succeeded());
}

TEST(HookCommand, MuchOutputOnBothStreamsIsPassedOn) {
  const Outcome outcome = run("head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2");
  EXPECT_TRUE(outcome.end.succeeded());
  EXPECT_EQ(outcome.output.size(), 600'000u);
}

TEST(HookCommand, ThatHangsIsKilledWithItsChildren) {
  const test::TempFolder folder;
  const std::string text =
      fmt::format("sleep 1000 & echo $! > {0}.tmp; mv {0}.tmp {0}; wait", folder.file("child"));
  std::string child;
  // On a busy machine the shell may need longer to begin.
  for (std::chrono::milliseconds timeout(300); child.empty(); timeout *= 3) {
    ASSERT_LT(timeout, std::chrono::minutes(1));
    const Outcome outcome = run(text, timeout);
    EXPECT_EQ(outcome.end.kind, Kind::kTimedOut);
    child = folder.read("child");
  }
  EXPECT_EQ(CommandEnd{.kind = Kind::kTimedOut}.text(std::chrono::milliseconds(300)),
            "was killed after 0.3 s (hooks.timeout)");
  child.pop_back();
  while (is_alive(child)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

TEST(HookCommand, IsKilledWhereItsCallerGivesUp) {
  int asked = 0;
  const CommandEnd end = run_command({.text = "sleep 1000",
                                      .environment = {"PATH=/usr/bin:/bin"},
                                      .timeout = kLong,
                                      .gives_up = [&] { return ++asked > 2; }});
  EXPECT_EQ(end.kind, Kind::kGivenUp);
}

TEST(HookCommand, HasAProcessGroupOfItsOwn) {
  const Outcome outcome = run("read -r line < /proc/$$/stat; echo \"$$ $line\"");
  int own = 0, process = 0, parent = 0, group = 0;
  char name[64], state = 0;
  ASSERT_EQ(std::sscanf(outcome.output.c_str(), "%d %d %63s %c %d %d", &own, &process, name, &state,
                        &parent, &group),
            6)
      << outcome.output;
  EXPECT_EQ(group, own);
  EXPECT_NE(group, ::getpgrp());
}

TEST(HookCommand, InheritsNoOpenFiles) {
  const int fd = ::open("/dev/null", O_RDONLY);  // without O_CLOEXEC
  ASSERT_GE(fd, 3);
  const Outcome outcome = run(fmt::format("test -e /proc/$$/fd/{} && echo open; true", fd));
  ::close(fd);
  EXPECT_EQ(outcome.output, "");
}

}  // namespace
}  // namespace sherd::engine
