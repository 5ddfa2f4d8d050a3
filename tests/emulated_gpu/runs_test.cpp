// What a process keeps from run to run, and with which libraries it begins none.

#include <gtest/gtest.h>

#include <memory>
#include <tuple>

#include "engine/launch/machine.h"
#include "tests/emulated_gpu/libraries.h"
#include "tests/emulated_gpu/on_machine.h"
#include "tests/fake_cuda/blas.h"
#include "tests/fake_cuda/cudnn.h"
#include "tests/support/devices/gpu_meshes.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

using Place = RunShape::Place;

// Threads come and go with each run; what the libraries have planned stays.
TEST(NcclRuns, ASecondRunOfTheSameShapesPlansNothingAnew) {
  const GpuMesh each{.shards = 2, .stage = 2, .dtype = DType::kBF16};
  engine::TrainingOptions options = options_of(each);
  options.model.seq_length = 11;  // as no other test has it: the process knows no plans for that
  const auto train_it = [&] { train(options, setup_of(each, Place::kGpus), 1); };
  fake_cuda::set_blas({});
  const auto planned = [] {
    return std::tuple(fake_cuda::questions(), fake_cuda::cudnn_handles(),
                      fake_cuda::cudnn_graphs());
  };
  const auto before = planned();
  on_machine(2, 1, train_it);
  const auto first = planned();
  EXPECT_GT(std::get<0>(first), std::get<0>(before));
  EXPECT_GT(std::get<2>(first), std::get<2>(before));
  on_machine(2, 2, train_it);
  EXPECT_EQ(planned(), first);
}

TEST(NcclRuns, BeginWithNoLibraryOfAnotherCuda) {
  const LoadedLibrary good{"cuBLASLt", "13.1.0", cuda_system().runtime_version,
                           "/opt/libcublasLt.so"};
  const LoadedLibrary other{"cuDNN", "9.1.0", 12040, "/opt/libcudnn.so.9"};
  on_machine(1, 1, [&] {
    const std::unique_ptr<void, void (*)(void*)> forgotten(
        &emulated::libraries_found, [](void*) { emulated::libraries_found.clear(); });
    emulated::libraries_found = {good};
    EXPECT_NO_THROW(engine::cuda_machine(1, {}));
    emulated::libraries_found = {good, other};
    EXPECT_EQ(test::error_text<UsageError>([] { engine::cuda_machine(1, {}); }),
              library_problem(other, cuda_system().runtime_version));
  });
}

}  // namespace
}  // namespace sherd::testing
