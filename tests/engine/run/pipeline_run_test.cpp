// Whole runs from a recipe, on ranks that have parts of the layers: no number of metrics.jsonl and no bit of
// a checkpoint differs from one rank's, and a checkpoint goes on on any other mesh.
#include <filesystem>
#include <map>

#include "checkpoint/format/manifest.h"
#include "checkpoint/store/committed.h"
#include "tests/engine/run/mesh_runs.h"
#include "tests/support/devices/separate_device.h"

namespace sherd::testing {
namespace {

class PipelineRun : public MeshRuns {
 protected:
  PipelineRun() { optimizer_ = "lamb"; }
};

const MeshOf kMeshes[] = {
    {"two parts", 1, 0, "pipeline_parallel_degree: 2"},
    {"2 x 2", 2, 3, "pipeline_parallel_degree: 2, pipeline_schedule: gpipe"},
    {"zero bubble", 1, 2, "pipeline_parallel_degree: 2, pipeline_schedule: zb_h1"},
};

TEST_F(PipelineRun, HasTheNumbersOfOneRankEvaluationsIncluded) {
  train_in(folder_, "one", on({"one", 1, 0, ""}));
  for (const MeshOf& mesh : kMeshes) {
    SCOPED_TRACE(mesh.name);
    train_in(folder_, mesh.name, on(mesh));
    expect_equal(mesh.name, "one");
  }
}

// Batches of an evaluation are copied there, several of them while the passes before are under way.
TEST_F(PipelineRun, ADeviceWithMemoryOfItsOwnChangesNoNumber) {
  train_in(folder_, "one", on({"one", 1, 0, ""}));
  TrainingRun apart = on(kMeshes[0]);
  apart.machine = std::make_shared<SeparateDevice>(/*deferred=*/true);
  train_in(folder_, "apart", apart);
  expect_equal("apart", "one");
}

TEST_F(PipelineRun, GoesOnOnAnotherMeshAsIfNothingHadHappened) {
  train_in(folder_, "whole", on({"whole", 1, 0, ""}));
  train_in(folder_, "run", on(kMeshes[0]));
  for (const MeshOf& mesh :
       {kMeshes[1], MeshOf{"3", 3, 2, ""}, kMeshes[2], MeshOf{"1", 1, 1, ""}, kMeshes[0]}) {
    SCOPED_TRACE(mesh.name);
    std::filesystem::remove_all(
        folder_.file("run/checkpoints/" + checkpoint::step_directory_name(kSteps)));
    train_in(folder_, "run", on(mesh));
    expect_equal("run", "whole");
  }
}

// Both ends hold the matrix; one tensor is saved, and goes on on one rank.
TEST_F(PipelineRun, ATiedMatrixIsSavedOnce) {
  const auto tied = [this](const MeshOf& mesh) {
    TrainingRun run = on(mesh);
    run.model = ", tie_embeddings: true";
    return run;
  };
  train_in(folder_, "two", tied(kMeshes[0]));
  const checkpoint::Checkpoint saved(
      checkpoint::posix_disk(),
      folder_.file("two/checkpoints/" + checkpoint::step_directory_name(kSteps)));
  std::map<int, std::int64_t> elements;  // by tensor
  for (const auto& shard : saved.manifest().shards) {
    for (const auto& piece : shard.pieces) elements[piece.tensor] += piece.count;
  }
  const auto& tensors = saved.manifest().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(elements[static_cast<int>(i)], tensors[i].numel()) << tensors[i].name;
  }
  std::filesystem::remove_all(
      folder_.file("two/checkpoints/" + checkpoint::step_directory_name(kSteps)));
  train_in(folder_, "two", tied({"1", 1, 3, ""}));
  EXPECT_EQ(numbers_of(folder_, "two").size(), static_cast<std::size_t>(kSteps) + 1);
}

}  // namespace
}  // namespace sherd::testing
