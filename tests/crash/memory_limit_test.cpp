// A training whose state is 2.5 times the memory that the system allows: it keeps to the limit, and
// computes what a training without a limit computes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/checkpoint/support/child.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;

/// A control group with so much memory and no swap; version 1 or 2, whichever this machine lets us
/// make.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::int64_t bytes) {
    const std::string name = "sherd-test-" + std::to_string(::getpid());
    for (const auto& [root, key, swap] :
         {std::tuple("/sys/fs/cgroup", "memory.max", "memory.swap.max"),
          std::tuple("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.swappiness")}) {
      const std::string folder = std::string(root) + "/" + name;
      std::error_code error;
      if (!fs::create_directory(folder, error) || error) continue;
      if (write(folder + "/" + key, std::to_string(bytes))) {
        write(folder + "/" + swap, "0");
        folder_ = folder;
        return;
      }
      fs::remove(folder, error);
    }
  }
  ~MemoryLimit() {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove(folder_, ignored);
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

  bool is_set() const { return !folder_.empty(); }
  /// The command as a process in the group.
  std::vector<std::string> inside(const std::string& command) const {
    return {"/bin/sh", "-c", "echo $$ > " + folder_ + "/cgroup.procs && exec " + command};
  }

 private:
  static bool write(const std::string& path, const std::string& text) {
    if (!fs::exists(path)) return false;
    std::ofstream file(path);
    file << text;
    file.close();
    return static_cast<bool>(file);
  }
  std::string folder_;
};

struct Size {
  int layers = 0, width = 0, seq_length = 0, steps = 0;
  std::int64_t limit = 0;
};

class Trainings {
 public:
  explicit Trainings(const Size& size) : size_(size) {
    std::string text;
    for (unsigned i = 0; text.size() < 200'000; ++i) {
      text += std::to_string(i * i % 9973) + (i % 11 == 0 ? "\n" : " ");
    }
    folder_.write("text.txt", text);
    folder_.write(
        "large.yaml",
        fmt::format("run: {{name: large, device: cpu}}\n"
                    "model: {{num_layers: {}, hidden_size: {}, num_attention_heads: 8, "
                    "vocab_size: 256, max_seq_length: {}}}\n"
                    "data: {{path: {}, format: bytes}}\n"
                    "training: {{seq_length: {}, global_batch_size: 2, micro_batch_size: 1, "
                    "max_steps: {}, sample_tokens: 0, eval_batches: 1}}\n"
                    "zero_optimization: {{stage: 3}}\n"
                    "activation_checkpointing: {{mode: full}}\n"
                    "gradient_clipping: {{max_norm: 1.0}}\n"
                    "lr_scheduler: {{type: constant}}\n"
                    "checkpoint: {{interval: {}, staging_mib: 4}}\n",
                    size.layers, size.width, size.seq_length, folder_.file("text.txt"),
                    size.seq_length, size.steps, size.steps / 2));
  }
  std::string command(const std::string& run, bool on_disk, int steps) const {
    std::string command = fmt::format(
        "{} train {} --set run.output_dir={} --set "
        "training.max_steps={}",
        SHERD_PROGRAM, folder_.file("large.yaml"), folder_.file(run), steps);
    if (on_disk) {
      command +=
          " --set zero_optimization.offload_optimizer=nvme --set "
          "zero_optimization.offload_param=nvme --set "
          "zero_optimization.offload_buffer_mib=16 --set activation_checkpointing.offload=nvme";
    }
    return command;
  }
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> losses;
    std::istringstream lines(folder_.read(run + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto values = nlohmann::json::parse(line);
      if (values.contains("loss")) losses.push_back(values.at("loss").get<double>());
    }
    return losses;
  }
  nlohmann::json memory(const std::string& run) const {
    return nlohmann::json::parse(folder_.read(run + "/memory.json"));
  }

 private:
  Size size_;
  test::TempFolder folder_{fs::current_path()};  // not in memory
};

// `compared`: steps of the training without a limit.
void train_in_limit(const Size& size, int compared) {
  const MemoryLimit limit(size.limit);
  if (!limit.is_set()) GTEST_SKIP() << "this machine lets us make no control group";
  const Trainings trainings(size);
  test::Child inside(limit.inside(trainings.command("inside", true, size.steps)));
  while (inside.read_some()) {
  }
  ASSERT_EQ(inside.wait(), 0) << inside.output();
  const auto memory = trainings.memory("inside");
  const auto arena = memory.at("predicted").at("arena_bytes").get<std::int64_t>();
  const auto state =
      4 * memory.at("predicted").at("by_category").at("gradients").get<std::int64_t>();
  EXPECT_GE(static_cast<double>(state), 2.5 * static_cast<double>(size.limit));
  EXPECT_LE(memory.at("process").at("arenas_resident_bytes").get<std::int64_t>(), arena);
  EXPECT_LE(memory.at("process").at("resident_peak_bytes").get<std::int64_t>(), size.limit);
  test::Child outside({"/bin/sh", "-c", "exec " + trainings.command("outside", false, compared)});
  while (outside.read_some()) {
  }
  ASSERT_EQ(outside.wait(), 0) << outside.output();
  std::vector<double> losses = trainings.losses("inside");
  ASSERT_EQ(std::ssize(losses), size.steps);
  losses.resize(static_cast<std::size_t>(compared));
  EXPECT_EQ(losses, trainings.losses("outside"));
}

TEST(MemoryLimitSlow, StateOfTwoAndAHalfTimesTheMemoryTrains) {
  // 250 M parameters, 4 GB of state.
  train_in_limit({20, 1024, 512, 20, std::int64_t{1500} << 20}, 3);
}

TEST(MemoryLimitSlow, ASmallTwinHasAllLosses) {
  // 53 M parameters, 850 MB of state. Of fewer, the program itself would be too large a part.
  train_in_limit({30, 384, 128, 20, std::int64_t{320} << 20}, 20);
}

}  // namespace
}  // namespace sherd::testing
