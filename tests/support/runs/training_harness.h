/// Small trainings in one process, for tests that compare runs bit for bit.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/store/disk.h"
#include "core/arena.h"
#include "engine/launch/launch.h"
#include "engine/plan/memory_plan.h"
#include "engine/train/training_step.h"

namespace sherd::testing {

/// How a run of a few steps is distributed, not what it computes.
struct RunShape {
  int world_size = 1;
  /// Other axes in place of `world_size` ranks that shard the ZeRO state; their product is the
  /// world size.
  std::vector<sharding::MeshAxis> axes{};
  int owners = 0;               ///< further ranks that hold the state of all others
  bool publishes_late = false;  ///< they do
  int num_micro_steps = 1;
  int stage = 0;
  sharding::GradSync grad_sync = sharding::GradSync::kEveryMicroStep;
  int batch_groups = 0;            ///< 0: one for each replica
  bool divides_optimizer = false;  ///< replicas shard the optimizer state
  int prefetch_depth = 1;
  bool reshard_after_forward = true;
  int threads_per_rank = 1;
  /// kApart: a device with separate memory (tests/support/devices/separate_device.h).
  /// kApartDeferred: its kernels also run asynchronously. kGpu: all ranks share a GPU. kGpus: one
  /// GPU per rank.
  enum class Place { kHost, kApart, kApartDeferred, kGpu, kGpus } place = Place::kHost;
  /// kGpus: to the engine, each rank seems to be a process of its own, with one thread.
  bool processes = false;
  bool cuda_graphs = false;
  /// The stream whose work is delayed as long as possible (tests/support/devices/late_streams.h).
  /// "compute" requires kApart, since host code may access host memory immediately.
  std::string late_stream{};
  /// Streams whose names begin with this sleep 1 ms before each operation; "": none.
  std::string slow_stream{};
  std::optional<int> slow_rank{};  ///< kApart…: the only rank whose streams sleep; none: all do
  std::uint64_t delay_seed = 0;    ///< 0: no delays; else sleeps up to 0.2 ms at stream boundaries
  /// Of state on disk; null: the file system's.
  checkpoint::Disk* disk = nullptr;
};
sharding::Mesh mesh_of(const RunShape& setup);
std::string name_of(const RunShape& setup);

/// The results of a run. == compares them bit for bit.
struct Outcome {
  std::vector<double> losses;
  std::vector<float> grad_norms;
  std::map<std::string, std::vector<float>> parameters;  ///< whole tensors by name

  bool operator==(const Outcome&) const = default;
};
/// The first difference in words, for a failing test; empty if there is none.
std::string difference(const Outcome& a, const Outcome& b);

/// A transformer of under 20,000 parameters with sizes that divide nothing.
model::ModelShape tiny_model(bool tied);
/// AdamW on `shape` with weight decay; clipping off unless `max_norm` is set.
engine::TrainingOptions tiny_training(const model::ModelShape& shape, float max_norm = 0.0f);

/// Fills tokens that depend only on (step, global row, position).
void fill_tokens(const model::ModelShape& shape, std::int64_t step, std::int64_t first_row,
                 std::int32_t* inputs, std::int32_t* targets);
/// A number that looks random: splitmix64's finaliser.
std::uint64_t mixed(std::uint64_t value);
/// The row of a step's batch with which a rank's micro-batch begins.
std::int64_t first_row(const engine::TrainingOptions& options, const sharding::Rank& rank,
                       std::int64_t micro_step);

/// Sleeps at every stream boundary. The duration is a function of (seed, stream, number of earlier
/// boundaries).
BoundaryHook delays(std::uint64_t seed);

/// Trains in an arena of planned memory and checks it with `expect_memory_as_planned`.
Outcome train(engine::TrainingOptions options, const RunShape& setup, int num_steps);

/// `options` with `setup` applied.
engine::TrainingOptions applied(engine::TrainingOptions options, const RunShape& setup);
engine::LaunchOptions launch_options(const RunShape& setup);
/// Launches `setup.world_size` ranks with its threads and delays; memory from the heap.
/// A failed ASSERT in `body` ends all ranks.
void run_ranks(const RunShape& setup, const std::function<void(sharding::Rank&)>& body);
/// Fails the test unless each phase of a training, and its peak, used exactly the planned memory.
void expect_memory_as_planned(const Arena& memory, const std::string& label);
/// A rank's micro-batches as the training step asks for them; `batches` gives them memory.
engine::NextBatch tokens_for(const engine::TrainingOptions& options, const sharding::Rank& rank,
                             std::vector<std::int32_t>& memory);
/// Sets the machine in `launch` to where `setup` places ranks, with memory plans for the `buffers`
/// of each rank r.
void place_ranks(engine::LaunchOptions& launch, const RunShape& setup,
                 const std::function<std::vector<BufferSpec>(int r)>& buffers);
/// The same for a training; includes its batches if the device has separate memory.
void place_training(engine::LaunchOptions& launch, const RunShape& setup,
                    const engine::TrainingOptions& options);
/// Copies the elements that this rank owns into whole tensors (every rank writes its own elements).
/// Of replicas that train apart, the first one's.
void collect_parameters(const engine::ShardedModel& model,
                        std::map<std::string, std::vector<float>>& parameters);
/// Whole tensors of the right sizes, for `collect_parameters` to fill.
std::map<std::string, std::vector<float>> empty_parameters(const model::ModelShape& shape);

}  // namespace sherd::testing
