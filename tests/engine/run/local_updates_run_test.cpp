// Whole runs whose replicas train apart: they resume bit for bit after every step, with another layout of a
// replica's state, and with more or fewer replicas by the rule of docs/local_updates.md.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/format/manifest.h"
#include "checkpoint/store/committed.h"
#include "engine/inference/evaluate.h"
#include "engine/recipe/recipe.h"
#include "engine/run/prepare.h"
#include "engine/run/run.h"
#include "tests/engine/run/mesh_runs.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlain = "diloco: {sync_every: 4}";
constexpr const char* kDelayed =
    "diloco: {sync_every: 4, num_fragments: 2, fragment_sync_delay: 1, fragment_update_alpha: "
    "0.25}";

class LocalUpdatesRun : public MeshRuns {
 protected:
  TrainingRun apart(int replicas, int shards, int stage, const std::string& keys) const {
    TrainingRun run =
        on({"", shards, stage, fmt::format("data_parallel_replicate_degree: {}", replicas)});
    run.more = keys;
    run.interval = 1;
    run.checkpoint = "keep_last: 100";
    return run;
  }
  std::string step(const std::string& output, int steps_done) const {
    return folder_.file(output + "/checkpoints/" + checkpoint::step_directory_name(steps_done));
  }
  // What `from` had when `steps_done` were done.
  void copy_until(const std::string& from, int steps_done, const std::string& to) const {
    fs::remove_all(folder_.file(to));
    fs::copy(folder_.file(from), folder_.file(to), fs::copy_options::recursive);
    for (int later = steps_done + 1; later <= kSteps; ++later) fs::remove_all(step(to, later));
  }
  std::string said(const std::string& output, const TrainingRun& run) const {
    ::testing::internal::CaptureStdout();
    train_in(folder_, output, run);
    return ::testing::internal::GetCapturedStdout();
  }
};

TEST_F(LocalUpdatesRun, ResumesAfterEveryStepAsIfItHadNeverStopped) {
  for (const char* keys : {kPlain, kDelayed}) {
    TrainingRun run = apart(2, 1, 1, keys);
    fs::remove_all(folder_.file("whole"));
    train_in(folder_, "whole", run);
    for (int stopped = 1; stopped < kSteps; ++stopped) {
      SCOPED_TRACE(fmt::format("{} after {}", keys, stopped));
      copy_until("whole", stopped, "again");
      train_in(folder_, "again", run);
      expect_equal("again", "whole");
    }
  }
}

TEST_F(LocalUpdatesRun, ResumesAtAnotherStageAndOnOtherShards) {
  const TrainingRun run = apart(2, 1, 0, kDelayed);
  train_in(folder_, "whole", run);
  int stopped = 1;
  for (const auto& [shards, stage] : {std::pair(2, 3), {3, 0}, {2, 2}, {1, 1}}) {
    SCOPED_TRACE(fmt::format("{} shards at stage {}", shards, stage));
    copy_until("whole", stopped++, "again");
    train_in(folder_, "again", apart(2, shards, stage, kDelayed));
    expect_equal("again", "whole");
  }
}

// Whether or not what is saved is written while training goes on.
TEST_F(LocalUpdatesRun, SavesTheSameInTheBackground) {
  TrainingRun run = apart(2, 2, 2, kDelayed);
  run.async = false;
  train_in(folder_, "whole", run);
  run.async = true;
  train_in(folder_, "async", run);
  for (int done = 1; done <= kSteps; ++done) {
    EXPECT_EQ(state_after(folder_, "async", done), state_after(folder_, "whole", done)) << done;
  }
}

// The loss that a run prints is that of the weights that a checkpoint hands out.
TEST_F(LocalUpdatesRun, EvaluatesTheGlobalWeights) {
  TrainingRun run = apart(2, 1, 2, kDelayed);
  train_in(folder_, "run", run);
  double loss = 0.0;
  for (const auto& line : metrics_of(folder_, "run")) {
    if (line.contains("val_loss")) loss = line["val_loss"].get<double>();
  }
  EXPECT_GT(loss, 0.0);
  EXPECT_EQ(engine::evaluate_checkpoint({.checkpoint = step("run", kSteps), .ranks = 1}).loss,
            loss);
}

// Another run begins with the global weights of a checkpoint, on all of its replicas.
TEST_F(LocalUpdatesRun, BeginsWithTheGlobalWeightsOfAnotherRun) {
  TrainingRun run = apart(2, 1, 2, kDelayed);
  train_in(folder_, "run", run);
  const double loss =
      engine::evaluate_checkpoint({.checkpoint = step("run", kSteps), .ranks = 1}).loss;
  run = apart(3, 1, 1, kPlain);
  run.checkpoint += ", init_from: " + step("run", kSteps);
  run.accumulation += ", eval_at_start: true";
  train_in(folder_, "next", run);
  for (const auto& line : metrics_of(folder_, "next")) {
    if (!line.contains("val_loss")) continue;
    EXPECT_EQ(line["val_loss"].get<double>(), loss);
    return;
  }
  ADD_FAILURE() << "no evaluation";
}

TEST_F(LocalUpdatesRun, EvaluationsChangeNoBit) {
  TrainingRun run = apart(2, 1, 0, kDelayed);
  train_in(folder_, "without", run);
  run.accumulation += ", eval_interval: 1";
  train_in(folder_, "with", run);
  EXPECT_EQ(state_after(folder_, "with", kSteps), state_after(folder_, "without", kSteps));
}

// With another number of replicas a checkpoint has other tensors, and is of the same run.
TEST_F(LocalUpdatesRun, SavesAStepAgainThatMoreReplicasHadSavedAndThatIsDamaged) {
  train_in(folder_, "run", apart(4, 1, 1, kPlain));
  for (int r = 0; r < 4; ++r) {
    const std::string shard =
        fmt::format("run/checkpoints/{}/{}", checkpoint::step_directory_name(kSteps),
                    checkpoint::shard_name(r, 4));
    std::string bytes = folder_.read(shard);
    for (std::size_t i = bytes.size() / 4; i < bytes.size(); i += 16) bytes[i] ^= 1;
    folder_.write(shard, bytes);
  }
  const std::string text = said("run", apart(2, 1, 1, kPlain));
  EXPECT_NE(text.find("the damaged checkpoint of this step is kept as "), std::string::npos)
      << text;
  EXPECT_GT(engine::evaluate_checkpoint({.checkpoint = step("run", kSteps), .ranks = 1}).loss, 0.0);
}

// A forged manifest could say that there are so many that nobody has room for a list of them.
TEST_F(LocalUpdatesRun, HasNoMoreReplicasThanItsCheckpointHasTensorsFor) {
  TrainingRun run = apart(3, 1, 1, kPlain);
  train_in(folder_, "run", run);
  const engine::PreparedRun prepared = engine::prepare(
      engine::resolve_recipe(
          {.path = "mine.yaml", .text = recipe_text(folder_, "run", run), .sets = {}, .ranks = {}}),
      *engine::cpu_machine(), checkpoint::posix_disk());
  const engine::TrainingOptions& options = prepared.prepared[0].options;
  const checkpoint::Checkpoint found(checkpoint::posix_disk(), step("run", kSteps));
  std::vector<sharding::StateTensor> tensors = found.manifest().tensors;
  EXPECT_EQ(engine::replicas_saved(options, tensors), 3);
  tensors.push_back({fmt::format("replica.{}.x", tensors.size()), "local", {1}, DType::kF32});
  EXPECT_EQ(engine::replicas_saved(options, tensors), 0);
}

// After an exchange of everything, nothing is lost.
TEST_F(LocalUpdatesRun, ContinuesWithMoreOrFewerReplicas) {
  train_in(folder_, "two", apart(2, 1, 1, kPlain));
  for (const int replicas : {1, 3, 4}) {
    copy_until("two", 4, "other");
    const std::string plural = replicas == 1 ? "" : "s";
    const std::string text = said("other", apart(replicas, 1, 2, kPlain));
    EXPECT_NE(text.find(fmt::format("{} replica{} instead of 2: all continue from the global "
                                    "weights, which are those of step 4\n",
                                    replicas, plural)),
              std::string::npos)
        << text;
    // And back.
    fs::remove_all(step("other", kSteps));
    EXPECT_NE(said("other", apart(2, 1, 0, kPlain))
                  .find(fmt::format("2 replicas instead of {}: ", replicas)),
              std::string::npos);
  }
}

TEST_F(LocalUpdatesRun, SaysThatUnsynchronisedWorkIsDroppedWhereTheNumberOfReplicasChanges) {
  train_in(folder_, "two", apart(2, 1, 1, kPlain));
  copy_until("two", 6, "other");
  const std::string text = said("other", apart(3, 1, 1, kPlain));
  EXPECT_NE(
      text.find("3 replicas instead of 2: all continue from the global weights; what each has "
                "trained since its fragments were last exchanged is dropped\n"),
      std::string::npos)
      << text;
}

TEST_F(LocalUpdatesRun, AnotherScheduleOfExchangesIsAnotherRun) {
  train_in(folder_, "run", apart(2, 1, 1, kPlain));
  copy_until("run", 4, "again");
  try {
    train_in(folder_, "again", apart(2, 1, 1, "diloco: {sync_every: 2}"));
    ADD_FAILURE() << "resumed";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("diloco.sync_every is 4 in the checkpoint and 2 in "),
              std::string::npos)
        << error.what();
  }
}

// Frozen parameters are equal on all replicas, and saved once.
TEST_F(LocalUpdatesRun, FreezesParametersOfAllReplicas) {
  TrainingRun run = apart(2, 2, 3, kDelayed);
  run.optimizer = "adamw, groups: [{parameters: [\"block.0.*\"], frozen: true}]";
  train_in(folder_, "whole", run);
  copy_until("whole", 3, "again");
  train_in(folder_, "again", run);
  expect_equal("again", "whole");
}

// Copies of weights are compared within a replica.
TEST_F(LocalUpdatesRun, HashesOfWeightsAreComparedWithinAReplica) {
  TrainingRun run = apart(2, 2, 2, kDelayed);
  run.accumulation += ", weight_hash_interval: 1";
  train_in(folder_, "run", run);
  EXPECT_FALSE(state_after(folder_, "run", kSteps).empty());
}

}  // namespace
}  // namespace sherd::testing
