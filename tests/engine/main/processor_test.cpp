// The program on processors that QEMU makes up.
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/runs/program.h"
#include "tests/where.h"

namespace sherd::engine {
namespace {

test::ProgramOutcome on_processor(const std::string& name,
                                  const std::vector<std::string>& program = {SHERD_PROGRAM,
                                                                             "--version"}) {
  std::vector<std::string> arguments = {"-cpu", name};
  arguments.insert(arguments.end(), program.begin(), program.end());
  return test::run_program("/usr/bin/qemu-x86_64", arguments);
}

constexpr const char* kSentence =
    "sherd: this processor lacks AVX2, FMA, BMI1, BMI2; this build needs x86-64-v3 (Intel since "
    "2013, AMD since 2015).\n";

TEST(ProcessorSlow, WithoutAvx2EndsTheProgramWithOneSentence) {
  if (::access("/usr/bin/qemu-x86_64", X_OK) != 0) GTEST_SKIP() << "qemu-user isn't installed";
  const test::ProgramOutcome outcome = on_processor("Nehalem");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err.substr(outcome.err.find("sherd: ")), kSentence);
}

TEST(ProcessorSlow, WithoutAvx2EndsAProgramThatLoadsTheLibraryWithOneSentence) {
  if (::access("/usr/bin/qemu-x86_64", X_OK) != 0) GTEST_SKIP() << "qemu-user isn't installed";
  const std::string load = "import ctypes; ctypes.CDLL('" SHERD_LIBRARY "')";
  const test::ProgramOutcome outcome = on_processor("Nehalem", {"/usr/bin/python3", "-c", load});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err.substr(outcome.err.find("sherd: ")), kSentence);
  EXPECT_EQ(on_processor("max", {"/usr/bin/python3", "-c", load}).exit_code, 0);
}

TEST(ProcessorSlow, WithAvx2RunsTheProgram) {
  if (::access("/usr/bin/qemu-x86_64", X_OK) != 0) GTEST_SKIP() << "qemu-user isn't installed";
  const test::ProgramOutcome outcome = on_processor("max");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with("sherd "));
}

}  // namespace
}  // namespace sherd::engine
