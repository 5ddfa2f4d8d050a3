#include "tests/life/run_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/inspect.h"
#include "checkpoint/store/committed.h"
#include "checkpoint/store/verify.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::posix_disk;
using checkpoint::step_directory_name;

// 1 rank with 4 micro-steps and 4 ranks with 1 give the same bits without clipping.
constexpr const char* kRecipe =
    R"(run: {{name: life, device: cpu, num_threads: 1, output_dir: {0}/run}}
model: {{num_layers: 2, hidden_size: 32, num_attention_heads: 4, num_kv_heads: 2, vocab_size: 128, dropout: 0.1}}
training: {{seq_length: 16, global_batch_size: 4, micro_batch_size: 1, max_steps: {1}, eval_interval: 9, eval_batches: 1}}
parallelism: {{data_parallel_shard_degree: 4}}
optimizer: {{lr: 1e-2}}
gradient_clipping: {{max_norm: 0}}
metrics: {{log_interval: 1000}}
checkpoint: {{interval: 1}}
data: {{path: {0}/text.txt, format: bytes, validation_path: {0}/held_out.txt}}
)";

std::string text(std::size_t bytes) {
  std::string text;
  const char* words[] = {"the ", "quick ", "brown ", "fox ", "jumps ", "over ", "lazy ", "dogs.\n"};
  for (unsigned i = 0; text.size() < bytes; ++i) text += words[(i * i + i / 3) % 8];
  return text;
}

std::vector<std::string> state_of(const std::string& path) {
  const Checkpoint saved(posix_disk(), path);
  std::vector<std::string> state = checkpoint::tensor_digests(saved);
  state.push_back(saved.manifest().global->at("counters").dump());
  return state;
}

}  // namespace

RunModel::RunModel() {
  folder_.write("text.txt", text(1700));
  folder_.write("held_out.txt", text(300).substr(7));
  folder_.write("life.yaml", fmt::format(kRecipe, folder_.path(), kLifeSteps));
  const Ended reference = run_sherd({"train", recipe(), "--set", "checkpoint.keep_every=1", "--set",
                                     "run.output_dir=" + folder_.file("reference")});
  EXPECT_EQ(reference.exit_code, 0) << reference.err;
  if (reference.exit_code != 0) return;
  losses_ = losses_in("reference/metrics.jsonl", false);
  EXPECT_EQ(std::ssize(losses_), kLifeSteps);
  for (std::int64_t step = 1; step <= kLifeSteps; ++step) {
    digests_[step] = state_of(reference_checkpoint(step));
  }
}

std::string RunModel::checkpoint(std::int64_t step) const {
  return output() + "/checkpoints/" + step_directory_name(step);
}
std::string RunModel::reference_checkpoint(std::int64_t step) const {
  return folder_.file("reference/checkpoints/" + step_directory_name(step));
}

std::vector<std::int64_t> RunModel::steps() const {
  auto steps = checkpoint::committed_steps(posix_disk(), output() + "/checkpoints");
  std::reverse(steps.begin(), steps.end());
  return steps;
}
std::vector<std::int64_t> RunModel::good_steps() const {
  std::vector<std::int64_t> good = steps();
  std::erase_if(good, [this](std::int64_t step) { return is_damaged(step); });
  return good;
}
std::int64_t RunModel::newest_good() const {
  const std::vector<std::int64_t> good = good_steps();
  return good.empty() ? 0 : good.back();
}

std::string RunModel::contents() const {
  std::map<std::string, std::string> files;
  if (!fs::exists(output())) return {};
  for (const auto& entry : fs::recursive_directory_iterator(output())) {
    // The lock says who last had the folder, also of a run that was refused.
    if (!entry.is_regular_file() || entry.path().filename() == ".lock") continue;
    // What a killed save or removal left is no checkpoint; the folder's next run may remove it.
    const std::string path = entry.path().string();
    if (path.find("/.tmp-step-") != std::string::npos) continue;
    if (path.find("/.gone-step-") != std::string::npos) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    files[entry.path().string()] = std::string(std::istreambuf_iterator<char>(in), {});
  }
  std::string all;
  for (const auto& [name, content] : files) {
    all += fmt::format("{} {} {}\n", name, content.size(), std::hash<std::string>{}(content));
  }
  return all;
}

void RunModel::damage(std::int64_t step, std::uint64_t random) {
  const Checkpoint saved(posix_disk(), checkpoint(step));
  const int shard = static_cast<int>(random % static_cast<unsigned>(saved.num_shards()));
  const auto& datasets = saved.manifest().shards[static_cast<std::size_t>(shard)].datasets;
  const auto& dataset = datasets[random / 7 % datasets.size()];
  const std::string path = saved.shard_path(shard);
  switch (random / 64 % 4) {
    case 0:
      fs::remove(path);
      break;
    case 1:
      fs::resize_file(path, fs::file_size(path) - 1);
      break;
    case 2:
      fs::remove(saved.manifest_path());
      break;
    default: {
      std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
      const auto at = dataset.offset + static_cast<std::int64_t>(random / 256 % 100) %
                                           std::max<std::int64_t>(dataset.bytes(), 1);
      file.seekg(at);
      const char flipped = static_cast<char>(file.get() ^ 4);
      file.seekp(at);
      file.put(flipped);
    }
  }
  damaged_.insert(step);
  known_.erase(step);
  promised_ = newest_good();
}

void RunModel::remove_checkpoint(std::int64_t step) {
  fs::remove_all(checkpoint(step));
  damaged_.erase(step);
  known_.erase(step);
  promised_ = newest_good();
}
void RunModel::remove_damaged() {
  for (const std::int64_t step : std::set(damaged_)) remove_checkpoint(step);
}
void RunModel::remove_file(const std::string& name) {
  fs::remove(output() + "/" + name);
  // A resumed run begins at the newest checkpoint, so earlier lines are gone for good.
  if (name == "metrics.jsonl") metrics_from_ = newest_good();
}
void RunModel::remove_metrics_meanwhile() {
  fs::remove(output() + "/metrics.jsonl");
  metrics_from_ = kWhereItBegins;
}
void RunModel::start_over() {
  fs::remove_all(output());
  damaged_.clear();
  known_.clear();
  promised_ = metrics_from_ = 0;
}

void RunModel::move_away() {
  fs::rename(output(), folder_.file("moved"));
}
void RunModel::move_back() {
  if (!fs::exists(folder_.file("moved"))) return;
  EXPECT_EQ(steps(), std::vector<std::int64_t>{}) << "saved in a folder that isn't the run's";
  fs::remove_all(output());
  fs::rename(folder_.file("moved"), output());
}

void RunModel::expect_right_after(const Ended& run) {
  const std::int64_t begin = run.resumed_from();
  if (begin >= 0) {
    EXPECT_EQ(begin, promised_) << "it resumes from another checkpoint than the newest good one";
    metrics_from_ = std::min(metrics_from_, begin);
  }
  const bool by_signal = run.exit_code < 0;
  if (!by_signal && run.exit_code != 0) {
    EXPECT_TRUE(run.err.starts_with("sherd: ")) << run.err;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
  forget_replaced();
  expect_checkpoints(std::max(promised_, run.acknowledged()));
  if (run.exit_code == 0) {
    EXPECT_EQ(newest_good(), kLifeSteps) << "it ended well without its last checkpoint";
  }
  promised_ = newest_good();
  expect_metrics(!by_signal);
}

// A save sets a damaged checkpoint of its step aside.
void RunModel::forget_replaced() {
  for (const std::int64_t step : std::set(damaged_)) {
    if (checkpoint::verify(posix_disk(), checkpoint(step), checkpoint::VerifyDepth::kDeep).good()) {
      damaged_.erase(step);
    }
  }
}

void RunModel::expect_checkpoints(std::int64_t at_least) {
  for (const std::int64_t step : good_steps()) {
    if (known_.contains(step)) continue;
    const auto report =
        checkpoint::verify(posix_disk(), checkpoint(step), checkpoint::VerifyDepth::kDeep);
    ASSERT_TRUE(report.good()) << report.problems[0];
    EXPECT_EQ(report.notes, std::vector<std::string>{});
    EXPECT_EQ(state_of(checkpoint(step)), digests_.at(step)) << "step " << step;
    known_.insert(step);
  }
  EXPECT_GE(newest_good(), at_least) << "a checkpoint that was there, or was reported, is lost";
}

// Every step once, in order, with the loss of the run that wasn't disturbed; at least up to the
// newest checkpoint.
void RunModel::expect_metrics(bool whole) {
  const std::map<std::int64_t, double> losses = losses_in("run/metrics.jsonl", !whole);
  if (metrics_from_ == kWhereItBegins) {
    metrics_from_ = losses.empty() ? newest_good() : losses.begin()->first;
  }
  std::int64_t next = metrics_from_;
  for (const auto& [step, loss] : losses) {
    EXPECT_EQ(step, next++) << "steps of metrics.jsonl";
    EXPECT_EQ(loss, losses_.at(step)) << "step " << step;
  }
  EXPECT_GE(next, newest_good()) << "metrics.jsonl lacks steps that the checkpoint has";
}

std::map<std::int64_t, double> RunModel::losses_in(const std::string& file,
                                                   bool may_be_torn) const {
  std::map<std::int64_t, double> losses;
  std::istringstream lines(folder_.read(file));
  for (std::string line; std::getline(lines, line);) {
    if (lines.eof()) {
      EXPECT_TRUE(may_be_torn) << "a torn line: " << line;
      break;
    }
    const auto values = nlohmann::json::parse(line);
    if (!values.contains("loss")) continue;
    const std::int64_t before = values.at("step").get<std::int64_t>() - 1;
    const bool first_time = losses.emplace(before, values.at("loss")).second;
    EXPECT_TRUE(first_time) << "twice: " << line;
  }
  return losses;
}

}  // namespace sherd::testing
