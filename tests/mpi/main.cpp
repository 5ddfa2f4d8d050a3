// All processes run all tests; process 0 prints, and any other only what fails on it. After a failure
// processes may not be in step any more, so the first failure ends the program.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "sharding/processes/mpi.h"
#include "tests/mpi/world.h"

namespace sherd::testing {
namespace {

class OnlyFailures : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& test) override { test_ = test.name(); }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "process %s, %s: %s:%d: %s\n", std::getenv("OMPI_COMM_WORLD_RANK"),
                 test_.c_str(), result.file_name() ? result.file_name() : "", result.line_number(),
                 result.message());
  }

  std::string test_;
};

class EndsAfterAFailure : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo& test) override {
    if (!test.result()->Failed()) return;
    std::fflush(nullptr);
    std::_Exit(1);
  }
};

}  // namespace

MpiWorldShape mpi_world() {
  const char* ranks = std::getenv("SHERD_RANKS_PER_PROCESS");
  return {sharding::num_processes_started(), ranks ? std::atoi(ranks) : 1};
}

}  // namespace sherd::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const char* process = std::getenv("OMPI_COMM_WORLD_RANK");
  if (process && std::atoi(process) > 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new sherd::testing::OnlyFailures);
  }
  // Listeners hear of a test's end in reverse: it is printed first.
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  auto* printer = listeners.Release(listeners.default_result_printer());
  listeners.Append(new sherd::testing::EndsAfterAFailure);
  if (printer) listeners.Append(printer);
  const int result = RUN_ALL_TESTS();
  sherd::sharding::finish_mpi();
  return result;
}
