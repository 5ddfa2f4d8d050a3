/// Complete small runs, from a recipe to checkpoints and metrics, for tests that compare them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/store/disk.h"
#include "engine/launch/device.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {

/// Steps of a run, and steps between its checkpoints.
inline constexpr int kSteps = 8, kInterval = 4;

/// Three small files of different lengths: an epoch is about five steps, so a resume is mid-epoch.
void write_data(const test::TempFolder& folder);

struct TrainingRun {
  int stage = 0, world = 1;
  std::string precision, optimizer, accumulation;
  bool async = true;
  int interval = kInterval;
  std::string checkpoint = "keep_last: 2";  ///< more keys of that block
  std::string more{};
  std::string mesh{}, zero{};  ///< more keys of the blocks parallelism and zero_optimization
  std::string model{};         ///< of the block model, with a comma before it
  std::string data{};          ///< of the block data, with a comma before it
  bool host_updates = false;   ///< for a GPU: state in the host's memory, updated by its cores
  int seq_length = 9;
  double dropout = 0.1;
  std::shared_ptr<const engine::Machine> machine{};  ///< null: the CPU
  checkpoint::Disk* disk = &checkpoint::posix_disk();
};
/// The recipe of such a run, which writes to `folder`/`output`.
std::string recipe_text(const test::TempFolder& folder, const std::string& output,
                        const TrainingRun& run);
/// Trains in `folder`/`output`, or resumes there.
void train_in(const test::TempFolder& folder, const std::string& output, const TrainingRun& run);

/// Resumes the run in `whole` in the middle, at each stage on each world; the numbers and the final
/// state must be the same.
void expect_goes_on_at_every_stage(const test::TempFolder& folder, TrainingRun run,
                                   const std::vector<int>& worlds);

/// The lines of metrics.jsonl about steps and evaluations, without measurements; as text.
std::vector<nlohmann::json> metrics_of(const test::TempFolder& folder, const std::string& output);
std::vector<std::string> numbers_of(const test::TempFolder& folder, const std::string& output);
/// Trains by a recipe's text and returns what the run says.
std::string said_by_run(const std::string& text, int ranks);
/// Digests of every tensor in the checkpoint after `step` steps.
std::vector<std::string> state_after(const test::TempFolder& folder, const std::string& output,
                                     int step);
/// Digests of every tensor in the last checkpoint, and its counters.
std::vector<std::string> final_state(const test::TempFolder& folder, const std::string& output);

}  // namespace sherd::testing
