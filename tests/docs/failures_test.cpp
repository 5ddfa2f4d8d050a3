// tests/failures.py: what it shows of a run of ctest.
#include <gtest/gtest.h>

#include "tests/support/runs/program.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd {
namespace {

std::string entry(const std::string& name, const std::string& printed, const std::string& result) {
  return "3/97 Testing: " + name + "\n3/97 Test: " + name + "\nCommand: \"/x\"\nOutput:\n" +
         std::string(58, '-') + "\n" + printed + "<end of output>\nTest time =   0.01 sec\n" +
         std::string(58, '-') + "\nTest " + result + ".\n";
}

std::string shown(const std::string& log) {
  const test::TempFolder folder;
  const test::ProgramOutcome outcome = test::run_program(
      "/usr/bin/env", {"python3", SHERD_SOURCE_DIR "/tests/failures.py", folder.write("log", log)});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.out;
}

const std::string kPassed = "[ RUN      ] A.Holds\n[       OK ] A.Holds (0 ms)\n";

TEST(Failures, AreNamedWithTheFirstThingsThatWereExpectedInVain) {
  std::string printed = kPassed + "[ RUN      ] A.Fails\nnoise\n";
  for (const char* line : {"1", "2", "3", "4", "5"}) {
    printed += std::string("/x/y.cpp:") + line + ": Failure\nExpected: 1\n\n";
  }
  printed += "[  FAILED  ] A.Fails (0 ms)\n" + kPassed;
  EXPECT_EQ(shown(entry("good", kPassed, "Passed") + entry("bad", printed, "Failed")),
            "\n== bad failed\nA.Fails\n/x/y.cpp:1: Failure\nExpected: 1\n\n/x/y.cpp:2: Failure\n"
            "Expected: 1\n\n/x/y.cpp:3: Failure\nExpected: 1\n\nand 2 more\n");
}

TEST(Failures, OfAProgramThatEndedInATestAreItsLastLines) {
  EXPECT_EQ(
      shown(entry("bad", kPassed + "[ RUN      ] A.Ends\nlast words\n", "Failed")),
      "\n== bad failed\nA.Ends: the program ended in this test; last it printed\nlast words\n");
}

TEST(Failures, OfAnotherProgramAreItsLastLines) {
  EXPECT_EQ(shown(entry("tool", "one\ntwo\n", "Failed") + entry("silent", "", "Failed") +
                  entry("skipped", "why\n", "Skipped")),
            "\n== tool failed\none\ntwo\n\n== silent failed\nit printed nothing\n");
}

}  // namespace
}  // namespace sherd
