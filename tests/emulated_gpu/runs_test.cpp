// What a process keeps from run to run, and with which libraries it begins none.

#include <gtest/gtest.h>

#include "engine/launch/machine.h"
#include "tests/emulated_gpu/libraries.h"
#include "tests/emulated_gpu/on_machine.h"
#include "tests/fake_cuda/blas.h"
#include "tests/support/error_text.h"
#include "tests/support/gpu_meshes.h"

namespace sherd::testing {
namespace {

using Place = RunShape::Place;

// Threads come and go with each run; what the libraries have planned stays.
TEST(NcclRuns, ASecondRunOfTheSameShapesPlansNothingAnew) {
  const GpuMesh each{.shards = 2, .stage = 2, .dtype = DType::kBF16, .steps = 1};
  fake_cuda::set_blas({});
  on_machine(2, 1, [&] { train_on(each, Place::kGpus); });
  const int planned = fake_cuda::questions();
  EXPECT_GT(planned, 0);
  on_machine(2, 2, [&] { train_on(each, Place::kGpus); });
  EXPECT_EQ(fake_cuda::questions(), planned);
}

TEST(NcclRuns, BeginWithNoLibraryOfAnotherCuda) {
  const LoadedLibrary good{"cuBLASLt", "13.1.0", cuda_system().runtime_version,
                           "/opt/libcublasLt.so"};
  const LoadedLibrary other{"cuDNN", "9.1.0", 12040, "/opt/libcudnn.so.9"};
  on_machine(1, 1, [&] {
    emulated::libraries_found = {good};
    EXPECT_NO_THROW(engine::cuda_machine(1, {}));
    emulated::libraries_found = {good, other};
    EXPECT_EQ(test::error_text<UsageError>([] { engine::cuda_machine(1, {}); }),
              library_problem(other, cuda_system().runtime_version));
    emulated::libraries_found.clear();
  });
}

}  // namespace
}  // namespace sherd::testing
