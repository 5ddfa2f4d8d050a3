// Whole runs from a recipe, on tensor and context ranks: sharded or not, with parts of the layers or without, no number of
// metrics.jsonl and no bit of a checkpoint differs; the numbers are near one rank's; and a checkpoint goes on on
// any other mesh.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/format/manifest.h"
#include "checkpoint/store/committed.h"
#include "tests/engine/run/mesh_runs.h"

namespace sherd::testing {
namespace {

class TensorRun : public MeshRuns {
 protected:
  // As if it had been killed after the checkpoint in the middle.
  void forget_second_half(const std::string& output) {
    std::filesystem::remove_all(
        folder_.file(output + "/checkpoints/" + checkpoint::step_directory_name(kSteps)));
  }
  // The value in every line of metrics.jsonl that has one.
  std::vector<double> values_of(const std::string& output, const char* key) const {
    std::vector<double> values;
    std::istringstream lines(folder_.read(output + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto parsed = nlohmann::json::parse(line);
      if (parsed.contains(key) && parsed[key].is_number()) values.push_back(parsed[key]);
    }
    return values;
  }
  // AdamW divides by the size of gradients, small ones too.
  void expect_near(const std::string& a, const std::string& b) const {
    for (const char* key : {"loss", "grad_norm", "val_loss"}) {
      const std::vector<double> values = values_of(a, key), others = values_of(b, key);
      ASSERT_EQ(values.size(), others.size()) << key;
      EXPECT_FALSE(values.empty()) << key;
      for (std::size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR(values[i], others[i], 1e-4 * others[i]) << key << ", line " << i;
      }
    }
  }
  checkpoint::Checkpoint last_checkpoint(const std::string& output) const {
    return {checkpoint::posix_disk(),
            folder_.file(output + "/checkpoints/" + checkpoint::step_directory_name(kSteps))};
  }
};

const MeshOf kOne{"one", 1, 0, ""};
const MeshOf kTwo{"tensor 2", 1, 0, "tensor_parallel_degree: 2"};
const MeshOf kFour{"tensor 4", 1, 1, "tensor_parallel_degree: 4"};
const MeshOf kSharded{"tensor 2 x shard 2", 2, 3, "tensor_parallel_degree: 2"};
const MeshOf kPipelined{"tensor 2 x pipeline 2", 1, 1,
                        "tensor_parallel_degree: 2, pipeline_parallel_degree: 2"};

TEST_F(TensorRun, HasTheSameNumbersHoweverItsStateIsSharded) {
  train_in(folder_, "two", on(kTwo));
  for (const MeshOf& mesh : {kSharded, kPipelined}) {
    SCOPED_TRACE(mesh.name);
    train_in(folder_, mesh.name, on(mesh));
    expect_equal(mesh.name, "two");
  }
}

TEST_F(TensorRun, StaysNearOneRankEvaluationsIncluded) {
  train_in(folder_, "one", on(kOne));
  for (const MeshOf& mesh : {kTwo, kFour}) {
    SCOPED_TRACE(mesh.name);
    train_in(folder_, mesh.name, on(mesh));
    expect_near(mesh.name, "one");
  }
}

// B.4 #8, #30, #31: saved on one mesh, dropout on, loaded on another.
// Its state is in one piece for any number of tensor ranks, none included.
TEST_F(TensorRun, GoesOnOnAnotherMesh) {
  train_in(folder_, "whole", on(kOne));
  train_in(folder_, "run", on(kTwo));
  for (const MeshOf& mesh : {MeshOf{"shard 3", 3, 2, ""}, kFour, kPipelined, kOne, kSharded}) {
    SCOPED_TRACE(mesh.name);
    forget_second_half("run");
    train_in(folder_, "run", on(mesh));
    expect_near("run", "whole");
  }
}

TEST_F(TensorRun, GoesOnBitForBitOnAnotherMeshWithAsManyTensorRanks) {
  train_in(folder_, "whole", on(kTwo));
  train_in(folder_, "run", on(kTwo));
  for (const MeshOf& mesh : {kSharded, kPipelined, kTwo}) {
    SCOPED_TRACE(mesh.name);
    forget_second_half("run");
    train_in(folder_, "run", on(mesh));
    expect_equal("run", "whole");
  }
}

// Its state is that of tensor ranks, so any mesh goes on with it.
const MeshOf kShared{"tensor 2, tokens shared", 1, 0,
                     "tensor_parallel_degree: 2, sequence_parallel: true"};
const MeshOf kSharedPipelined{
    "tensor 2, tokens shared x pipeline 2 x shard 2", 2, 3,
    "tensor_parallel_degree: 2, sequence_parallel: true, pipeline_parallel_degree: 2"};

TEST_F(TensorRun, WhoseRanksShareTokensHasTheSameNumbersHoweverItsStateIsSharded) {
  train_in(folder_, "shared", on(kShared));
  train_in(folder_, "pipelined", on(kSharedPipelined));
  expect_equal("pipelined", "shared");
  train_in(folder_, "one", on(kOne));
  expect_near("shared", "one");
}

TEST_F(TensorRun, WhoseRanksShareTokensGoesOnOnAnyMesh) {
  train_in(folder_, "whole", on(kOne));
  train_in(folder_, "run", on(kShared));
  for (const MeshOf& mesh : {kOne, kSharedPipelined, kFour, kShared}) {
    SCOPED_TRACE(mesh.name);
    forget_second_half("run");
    train_in(folder_, "run", on(mesh));
    expect_near("run", "whole");
  }
}

const MeshOf kContext{"context 2", 1, 2, "context_parallel_degree: 2"};

const MeshOf kGathered{"keys gathered on context 4", 1, 3,
                       "context_parallel_degree: 4, context_parallel_method: all_gather"};

const MeshOf kRing{"a ring of context 4", 1, 3,
                   "context_parallel_degree: 4, context_parallel_method: ring"};

// B.4 #8 along the sequence.
class ContextRun : public TensorRun {
 protected:
  // Rows of 8 positions, so that two ranks have 4 each.
  TrainingRun with_context(const MeshOf& mesh) const {
    TrainingRun run = on(mesh);
    run.seq_length = 8;
    return run;
  }
};

TEST_F(ContextRun, StaysNearOneRankEvaluationsIncluded) {
  train_in(folder_, "one", with_context(kOne));
  for (const MeshOf& mesh : {kContext, kGathered, kRing}) {
    SCOPED_TRACE(mesh.name);
    train_in(folder_, mesh.name, with_context(mesh));
    expect_near(mesh.name, "one");
  }
}

TEST_F(ContextRun, GoesOnOnAnyMesh) {
  train_in(folder_, "whole", with_context(kOne));
  train_in(folder_, "run", with_context(kContext));
  const MeshOf mixed{"context 2 x pipeline 2", 1, 1,
                     "context_parallel_degree: 2, pipeline_parallel_degree: 2"};
  for (const MeshOf& mesh : {kOne, mixed, kRing, kGathered, kRing, kSharded, kContext}) {
    SCOPED_TRACE(mesh.name);
    forget_second_half("run");
    train_in(folder_, "run", with_context(mesh));
    expect_near("run", "whole");
  }
}

// Columns are cut only where there are tensor ranks; older programs read what others write.
TEST_F(TensorRun, CheckpointsSayThatTheyHaveBandsOfColumns) {
  for (const auto& [mesh, bands] : {std::pair(kOne, false), {kTwo, true}}) {
    train_in(folder_, mesh.name, on(mesh));
    const checkpoint::Checkpoint saved = last_checkpoint(mesh.name);
    std::map<int, std::int64_t> elements;
    bool any = false;
    for (const auto& shard : saved.manifest().shards) {
      for (const auto& piece : shard.pieces) {
        elements[piece.tensor] += piece.count;
        any = any || !piece.band.is_whole();
      }
    }
    EXPECT_EQ(any, bands) << mesh.name;
    const auto& tensors = saved.manifest().tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(elements[static_cast<int>(i)], tensors[i].numel()) << tensors[i].name;
    }
  }
}

}  // namespace
}  // namespace sherd::testing
