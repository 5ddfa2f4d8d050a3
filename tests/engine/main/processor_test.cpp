// The program on processors that QEMU makes up.
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/runs/program.h"
#include "tests/where.h"

namespace sherd::engine {
namespace {

test::ProgramOutcome on_processor(const std::string& name) {
  return test::run_program("/usr/bin/qemu-x86_64", {"-cpu", name, SHERD_PROGRAM, "--version"});
}

TEST(ProcessorSlow, WithoutAvx2EndsTheProgramWithOneSentence) {
  if (::access("/usr/bin/qemu-x86_64", X_OK) != 0) GTEST_SKIP() << "qemu-user isn't installed";
  const test::ProgramOutcome outcome = on_processor("Nehalem");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err.substr(outcome.err.find("sherd: ")),
            "sherd: this processor lacks AVX2, FMA, BMI1, BMI2; this build needs x86-64-v3 (Intel "
            "since 2013, AMD since 2015).\n");
}

TEST(ProcessorSlow, WithAvx2RunsTheProgram) {
  if (::access("/usr/bin/qemu-x86_64", X_OK) != 0) GTEST_SKIP() << "qemu-user isn't installed";
  const test::ProgramOutcome outcome = on_processor("max");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with("sherd "));
}

}  // namespace
}  // namespace sherd::engine
