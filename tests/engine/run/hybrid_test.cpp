// Whole runs from a recipe: how many ranks there are, and whether some are replicas, changes no number of
// metrics.jsonl and no bit of a checkpoint. Nor does a change of the mesh in the middle.
#include <filesystem>

#include "checkpoint/format/manifest.h"
#include "tests/engine/run/mesh_runs.h"

namespace sherd::testing {
namespace {

using Hybrid = MeshRuns;

const MeshOf kDivided{"divided", 2, 3, "data_parallel_replicate_degree: 2",
                      ", shard_optimizer_over_replicas: true"};

TEST_F(Hybrid, ReplicasHaveTheBitsOfAsManyGroupsOnAnyNumberOfRanks) {
  train_in(folder_, "one", on({"one", 1, 0, "batch_groups: 2"}));
  for (const MeshOf& mesh :
       {MeshOf{"three", 3, 2, "batch_groups: 2"},
        MeshOf{"two replicas", 1, 1, "data_parallel_replicate_degree: 2"},
        MeshOf{"2 x 2", 2, 3, "data_parallel_replicate_degree: 2"}, kDivided}) {
    SCOPED_TRACE(mesh.name);
    train_in(folder_, mesh.name, on(mesh));
    expect_equal(mesh.name, "one");
  }
}

TEST_F(Hybrid, ARunGoesOnOnAnotherMeshAsIfNothingHadHappened) {
  train_in(folder_, "whole", on({"whole", 1, 0, "batch_groups: 2"}));
  train_in(folder_, "run", on({"run", 2, 3, "data_parallel_replicate_degree: 2"}));
  for (const MeshOf& mesh :
       {MeshOf{"4", 4, 2, "batch_groups: 2"},
        MeshOf{"2 x 3", 3, 1, "data_parallel_replicate_degree: 2"},
        MeshOf{"2 x 1", 1, 3, "data_parallel_replicate_degree: 2"}, kDivided}) {
    SCOPED_TRACE(mesh.name);
    std::filesystem::remove_all(
        folder_.file("run/checkpoints/" + checkpoint::step_directory_name(kSteps)));
    train_in(folder_, "run", on(mesh));
    expect_equal("run", "whole");
  }
}

}  // namespace
}  // namespace sherd::testing
