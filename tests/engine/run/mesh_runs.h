/// Whole runs of one recipe on several meshes, which are to have the same numbers and checkpoints.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/support/runs/small_run.h"

namespace sherd::testing {

struct MeshOf {
  std::string name;
  int shards, stage;
  std::string more;    ///< keys of the block parallelism
  std::string zero{};  ///< keys of the block zero_optimization, with a comma before them
};

class MeshRuns : public ::testing::Test {
 protected:
  void SetUp() override { write_data(folder_); }

  TrainingRun on(const MeshOf& mesh) const {
    return {.stage = mesh.stage,
            .world = mesh.shards,
            .precision = "gradient_clipping: {max_norm: 0.1}",
            .optimizer = optimizer_,
            .accumulation = "micro_batch_size: 1",
            .mesh = mesh.more,
            .zero = "grad_sync: every_micro_step" + mesh.zero};
  }
  void expect_equal(const std::string& a, const std::string& b) const {
    EXPECT_EQ(numbers_of(folder_, a), numbers_of(folder_, b));
    EXPECT_EQ(final_state(folder_, a), final_state(folder_, b));
  }

  test::TempFolder folder_;
  std::string optimizer_ = "adamw";
};

}  // namespace sherd::testing
