// `sherd train`, which saves all the time, is killed without warning again and again, and each time
// the same command line continues: nothing acknowledged is lost, everything there is whole, and the
// result equals that of a run that was never killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/inspect.h"
#include "checkpoint/store/committed.h"
#include "checkpoint/store/step_directory.h"
#include "checkpoint/store/verify.h"
#include "tests/checkpoint/support/child.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd::checkpoint {
namespace {

using test::Child;

constexpr int kSteps = 40;

/// A model of some thousand parameters on two ranks at stage 3, with everything that a resume could
/// get wrong: dropout, a schedule, and data whose epochs end in the middle.
class TrainCrash {
 public:
  /// `on_disk`: the runs that are killed keep their state on disk; the reference doesn't.
  TrainCrash(int interval, bool on_disk) : on_disk_(on_disk) {
    std::string text;
    const char* words[] = {"the ",   "quick ", "brown ", "fox ",
                           "jumps ", "over ",  "lazy ",  "dogs.\n"};
    for (unsigned i = 0; text.size() < 1700; ++i) text += words[(i * i + i / 3) % 8];
    folder_.write("text.txt", text);
    folder_.write("crash.yaml", R"(run: {name: crash, num_threads: 1}
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4, num_kv_heads: 2, vocab_size: 128, dropout: 0.1}
training: {seq_length: 16, global_batch_size: 12, gradient_accumulation_steps: 1, max_steps: 40, sample_tokens: 0}
parallelism: {data_parallel_shard_degree: 2}
zero_optimization: {stage: 3}
optimizer: {lr: 1e-2}
metrics: {log_interval: 1000}
checkpoint: {interval: )" + std::to_string(interval) +
                                    "}\n" + "data: {path: " + folder_.file("text.txt") +
                                    ", format: bytes}\n");
    std::vector<std::string> reference_command = command("reference");
    reference_command.insert(reference_command.end(), {"--set", "checkpoint.keep_every=1"});
    Child reference(reference_command);
    EXPECT_EQ(reference.wait(), 0);
    losses_ = losses_in("reference", true);
    EXPECT_EQ(losses_.size(), std::size_t{kSteps});
    for (const std::int64_t step : steps_in("reference")) {
      digests_[step] = tensor_digests(Checkpoint(posix_disk(), path_of("reference", step)));
    }
    EXPECT_EQ(std::ssize(digests_), kSteps / interval);
  }

  /// Kills `times` processes; a run that comes to its end is looked at, and a new one begins.
  void kill_at_random_moments(int times) {
    std::mt19937 random(20260102);
    for (int i = 0; i < times && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("kill " + std::to_string(i) + ", run " + std::to_string(num_runs_));
      Child child(command(run_name()));
      // Most have saved something, however slow the machine is; the others may be hit at the start.
      if (i % 4 != 0) {
        while (child.output().find("\nsaved ") == std::string::npos && child.read_some()) {
        }
      }
      const std::chrono::microseconds delay(random() % 300'000);
      child.read_until(std::chrono::steady_clock::now() + delay);
      child.kill();
      look_after(child);
    }
    // The last run continues to its end.
    if (newest_ > 0) {
      Child child(command(run_name()));
      look_after(child);
    }
    EXPECT_EQ(newest_, 0) << "it didn't come to its end";
  }

  int num_killed() const { return num_killed_; }
  int num_acknowledged() const { return num_acknowledged_; }
  int num_runs() const { return num_runs_; }

 private:
  std::vector<std::string> command(const std::string& run) const {
    std::vector<std::string> words = {SHERD_PROGRAM, "train", folder_.file("crash.yaml"), "--set",
                                      "run.output_dir=" + folder_.file(run)};
    if (on_disk_ && run != "reference") {
      for (const char* setting :
           {"zero_optimization.offload_optimizer=nvme", "zero_optimization.offload_param=nvme",
            "zero_optimization.offload_buffer_mib=1"}) {
        words.insert(words.end(), {"--set", setting});
      }
    }
    return words;
  }
  std::string run_name() const { return "run-" + std::to_string(num_runs_); }
  std::string path_of(const std::string& run, std::int64_t step) const {
    return folder_.file(run + "/checkpoints/" + step_directory_name(step));
  }
  std::vector<std::int64_t> steps_in(const std::string& run) const {
    return committed_steps(posix_disk(), folder_.file(run + "/checkpoints"));
  }

  /// A process has ended, or is about to: what it has said and what it has left.
  void look_after(Child& child) {
    const int status = child.wait();
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    ASSERT_TRUE(killed || status == 0) << "it ended by itself, with status " << status << "\n"
                                       << child.output();
    num_killed_ += killed;
    const std::string& said = child.output();
    if (newest_ > 0 && said.find("saved ") != std::string::npos) {
      const std::string begin = "resumed from " + path_of(run_name(), newest_);
      EXPECT_NE(said.find(begin), std::string::npos) << begin << " in\n" << said;
    }
    std::int64_t acknowledged = 0;
    std::istringstream lines(said);
    for (std::string line; std::getline(lines, line) && !lines.eof();) {
      if (!line.starts_with("saved ")) continue;
      ++num_acknowledged_;
      acknowledged = std::stoll(line.substr(line.find("/step-") + 6));
    }
    std::int64_t newest = 0;
    for (const std::int64_t step : steps_in(run_name())) {
      newest = std::max(newest, step);
      if (step >= newest_) expect_whole(step);
    }
    EXPECT_GE(newest, std::max(acknowledged, newest_)) << "a checkpoint is lost";
    newest_ = newest;
    const bool done = status == 0;
    const std::map<std::int64_t, double> losses = losses_in(run_name(), done);
    EXPECT_GE(std::ssize(losses), newest);
    if (!done) return;
    EXPECT_EQ(newest, kSteps);
    EXPECT_EQ(losses.size(), std::size_t{kSteps});
    for (const std::int64_t step : steps_in(run_name())) expect_whole(step);
    for (const std::string& name :
         list_directory(posix_disk(), folder_.file(run_name() + "/checkpoints"))) {
      EXPECT_TRUE(name.starts_with("step-") || name == "latest") << name << " is left";
    }
    remove_tree(posix_disk(), folder_.file(run_name()));
    ++num_runs_;
    newest_ = 0;
  }

  /// Every byte against its checksum, and weights and moments against the run that wasn't killed.
  void expect_whole(std::int64_t step) const {
    const std::string path = path_of(run_name(), step);
    const VerifyReport report = verify(posix_disk(), path, VerifyDepth::kDeep);
    ASSERT_TRUE(report.good()) << report.problems[0];
    EXPECT_EQ(report.notes, std::vector<std::string>{});
    EXPECT_EQ(tensor_digests(Checkpoint(posix_disk(), path)), digests_.at(step)) << path;
  }

  /// Losses by step, the first one 0. Each step is listed once, in order, from the first one on, and is the same
  /// as in the run that wasn't killed; only a killed process may leave a line that is cut off.
  std::map<std::int64_t, double> losses_in(const std::string& run, bool done) const {
    std::map<std::int64_t, double> losses;
    std::istringstream lines(folder_.read(run + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const bool cut_off = lines.eof();
      EXPECT_FALSE(done && cut_off) << line;
      if (cut_off) break;
      const nlohmann::json values = nlohmann::json::parse(line);
      if (!values.contains("loss")) continue;
      const std::int64_t step = values.at("step").get<std::int64_t>() - 1;
      EXPECT_EQ(step, std::ssize(losses)) << "a step is missing or listed twice";
      losses[step] = values.at("loss");
      const auto expected = losses_.find(step);
      if (expected != losses_.end()) {
        EXPECT_EQ(losses[step], expected->second) << "step " << step;
      }
    }
    return losses;
  }

  const bool on_disk_;
  test::TempFolder folder_;
  std::map<std::int64_t, double> losses_;                     ///< of the reference
  std::map<std::int64_t, std::vector<std::string>> digests_;  ///< likewise
  int num_runs_ = 0, num_killed_ = 0, num_acknowledged_ = 0;
  std::int64_t newest_ = 0;  ///< of the run that is on
};

void kill_train(int interval, int times, bool on_disk = false) {
  TrainCrash crash(interval, on_disk);
  if (::testing::Test::HasFailure()) return;
  crash.kill_at_random_moments(times);
  // A process may come to its end before it is killed, but not as a rule.
  EXPECT_GE(crash.num_killed(), times / 2);
  EXPECT_GE(crash.num_acknowledged(), times / 2);
  ::testing::Test::RecordProperty("killed", crash.num_killed());
  ::testing::Test::RecordProperty("acknowledged", crash.num_acknowledged());
  ::testing::Test::RecordProperty("runs", crash.num_runs());
}

TEST(TrainCrash, KilledAtRandomMomentsIsTheRunThatWasNotKilled) {
  kill_train(1, 10);
  kill_train(2, 10);
}

TEST(TrainCrash, StateOnDiskIsLostWithTheProcessAndNothingElse) {
  kill_train(1, 8, /*on_disk=*/true);
}

TEST(TrainCrashSlow, KilledAtRandomMomentsIsTheRunThatWasNotKilled) {
  kill_train(1, 500);
  kill_train(2, 500);
  kill_train(1, 300, /*on_disk=*/true);
}

}  // namespace
}  // namespace sherd::checkpoint
