// Whole runs with parameter servers: the numbers and checkpoints of runs without them, resumed on
// other numbers of servers and workers, and with late publishing after every step.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/format/manifest.h"
#include "engine/inference/evaluate.h"
#include "engine/recipe/recipe.h"
#include "engine/run/run.h"
#include "tests/engine/run/mesh_runs.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;

class ServersRun : public MeshRuns {
 protected:
  TrainingRun with(int workers, int servers, int stage, int delay = 0) const {
    std::string keys = fmt::format("parameter_servers: {}", servers);
    if (delay > 0) keys += ", publish_delay: 1";
    TrainingRun run = on({"", workers, stage, servers == 0 ? "" : keys});
    run.interval = 1;
    run.checkpoint = "keep_last: 100";
    run.more = more_;
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

  std::string more_ = "mixed_precision: {param_dtype: bf16}";
};

TEST_F(ServersRun, HasTheNumbersAndCheckpointsOfARunWithoutServers) {
  train_in(folder_, "without", with(2, 0, 1));
  for (const auto& [servers, stage] : {std::pair(1, 1), {2, 2}, {3, 3}}) {
    SCOPED_TRACE(fmt::format("{} servers at stage {}", servers, stage));
    const std::string output = fmt::format("with.{}", stage);
    train_in(folder_, output, with(2, servers, stage));
    expect_equal(output, "without");
  }
}

// Whatever reads or changes the state between steps.
TEST_F(ServersRun, HasThemWithWhatElseReadsOrChangesTheState) {
  int number = 0;
  for (const auto& [optimizer, keys] :
       {std::pair("adamw", "averages: {type: ema, decay: 0.5, evaluate: true}"),
        {"adamw, eight_bit_states: true", "bad_steps: {max_grad_norm: 3}"},
        {"adamw, qk_clip_threshold: 0.01", ""},
        {"adamw, groups: [{parameters: [\"block.0.*\", \"embedding.token.*\"], frozen: true}]",
         "averages: {type: ema, decay: 0.5}"},
        {"muon", "loss_scaling: {mode: none}"},
        {"dion", ""},
        {"lamb", "metrics: {log_max_attention_logit: true}"}}) {
    SCOPED_TRACE(fmt::format("{} {}", optimizer, keys));
    optimizer_ = optimizer;
    more_ = keys;
    const std::string without = fmt::format("without.{}", number);
    const std::string output = fmt::format("with.{}", number++);
    TrainingRun hashed = with(2, 1 + number % 3, 1 + number % 3);
    if (hashed.stage < 3) hashed.accumulation += ", weight_hash_interval: 1";
    train_in(folder_, without, with(2, 0, 1));
    train_in(folder_, output, hashed);
    expect_equal(output, without);
  }
}

// Workers have the weights of the update before.
TEST_F(ServersRun, ThatPublishesLateHasEqualCopiesOfItsWeights) {
  for (const std::string& precision : {more_, std::string()}) {
    more_ = precision;
    for (const auto& [servers, stage] : {std::pair(1, 1), {2, 2}}) {
      SCOPED_TRACE(fmt::format("{} servers at stage {}", servers, stage));
      const std::string output = fmt::format("{}.{}", precision.size(), servers);
      TrainingRun hashed = with(2, servers, stage, 1);
      train_in(folder_, "without." + output, hashed);
      hashed.accumulation += ", weight_hash_interval: 1";
      train_in(folder_, output, hashed);
      expect_equal(output, "without." + output);
    }
  }
}

TEST_F(ServersRun, ResumesOnOtherServersAndWorkersAndWithoutServers) {
  train_in(folder_, "whole", with(2, 2, 2));
  int stopped = 1;
  for (const auto& [workers, servers, stage] :
       {std::tuple(2, 1, 3), {3, 2, 1}, {2, 0, 3}, {1, 3, 2}, {3, 0, 0}}) {
    if (stopped >= kSteps) break;
    SCOPED_TRACE(fmt::format("{} workers, {} servers at stage {}", workers, servers, stage));
    copy_until("whole", stopped++, "again");
    train_in(folder_, "again", with(workers, servers, stage));
    expect_equal("again", "whole");
  }
}

TEST_F(ServersRun, ResumesWithServersWhatBeganWithout) {
  train_in(folder_, "whole", with(3, 0, 2));
  copy_until("whole", 2, "again");
  train_in(folder_, "again", with(2, 2, 3));
  expect_equal("again", "whole");
}

TEST_F(ServersRun, ThatPublishesLateResumesAfterEveryStep) {
  for (const int stage : {1, 2, 3}) {
    if (stage == 3) more_ += "\naverages: {type: ema, decay: 0.5, evaluate: true}";
    const TrainingRun run = with(2, 2, stage, 1);
    fs::remove_all(folder_.file("whole"));
    train_in(folder_, "whole", run);
    for (int stopped = 1; stopped < kSteps; ++stopped) {
      SCOPED_TRACE(fmt::format("stage {} after {}", stage, stopped));
      copy_until("whole", stopped, "again");
      train_in(folder_, "again", with(stopped % 3 + 1, stopped % 2 + 1, stopped % 3 + 1, 1));
      expect_equal("again", "whole");
    }
  }
}

TEST_F(ServersRun, ThatPublishesLateTrainsOtherwise) {
  train_in(folder_, "late", with(2, 1, 1, 1));
  train_in(folder_, "on time", with(2, 1, 1));
  EXPECT_NE(final_state(folder_, "late"), final_state(folder_, "on time"));
}

// The checkpoint's parameters, not those that workers have.
TEST_F(ServersRun, IsEvaluatedLikeItsCheckpoint) {
  TrainingRun run = with(2, 2, 2, 1);
  train_in(folder_, "late", run);
  const auto lines = metrics_of(folder_, "late");
  double last = 0.0;
  for (const auto& line : lines) {
    if (line.contains("val_loss")) last = line["val_loss"].get<double>();
  }
  EXPECT_EQ(engine::evaluate_checkpoint({.checkpoint = step("late", kSteps), .ranks = {}}).loss,
            last);
}

}  // namespace
}  // namespace sherd::testing
