#include "engine/saving/checkpointing.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <set>

#include "checkpoint/writer.h"
#include "core/offload_home.h"
#include "engine/saving/run_state.h"
#include "kernels/isa.h"
#include "optim/compressed_sum.h"
#include "optim/eight_bits.h"
#include "optim/moment_kinds.h"

namespace sherd::engine {
namespace {

// Each replica saves all of its own state; state that all replicas have is saved once.
std::vector<std::int64_t> compressed_bytes(const TrainingOptions& options,
                                           const sharding::ShardingPlan& plan) {
  std::map<std::string, std::int64_t> bytes;  // by kind
  for (const sharding::UnitPlan& unit : plan.units) {
    std::set<std::string> kinds;
    for (const ParameterSpec& parameter : unit.spec.parameters) {
      for (const optim::SumKind& kind :
           optim::CompressedSum::own_kinds(*options.compression, unit.spec, parameter)) {
        kinds.insert(kind.kind);
      }
      for (const optim::SumKind& kind :
           optim::CompressedSum::shared_kinds(*options.compression, unit.spec, parameter)) {
        if (!kind.is_whole) {
          kinds.insert(kind.kind);
        } else {
          bytes[kind.kind] += sharding::StateTensor{{}, {}, kind.shape}.numel() * 4;
        }
      }
    }
    for (const std::string& kind : kinds) bytes[kind] += unit.layout.slice_numel() * 4;
  }
  std::vector<std::int64_t> list;
  for (const auto& [kind, count] : bytes) list.push_back(count);
  return list;
}

// A rank's bytes of each kind that isn't on disk, at most: slices are padded, and some parameters
// may lack some kinds.
std::vector<std::int64_t> bytes_by_kind(const TrainingOptions& options,
                                        const sharding::ShardingPlan& plan,
                                        const sharding::OffloadOptions& offload) {
  const optim::OptimizerDescriptor& optimizer = optim::descriptor_of(options.optimizer.type);
  std::int64_t slices = 0, frozen = 0, published = 0, factors = 0;
  std::set<std::string> kinds;
  for (const sharding::UnitPlan& unit : plan.units) {
    if (!unit.is_workers()) slices += unit.layout.slice_numel();
    if (const auto buffer = sharding::unit_buffers(unit).published) published += buffer->bytes();
    if (saves_frozen(options)) frozen += unit.frozen_layout.slice_numel();
    for (const ParameterSpec& parameter : unit.spec.parameters) {
      for (std::string& kind : optimizer.moment_kinds(options.optimizer, unit.spec, parameter)) {
        if (optim::is_factor(kind)) {
          factors +=
              sharding::StateTensor{
                  {}, {}, optim::shape_of_kind(kind, options.optimizer, parameter)}
                  .numel();
        } else {
          kinds.insert(std::move(kind));
        }
      }
    }
  }
  const bool are_here = !offload.master && !offload.parameters;
  std::vector<std::int64_t> bytes = {((are_here ? slices : 0) + frozen) * 4};
  if (offload.moments) kinds.clear();
  for (const std::string& kind : kinds) {
    const optim::MomentForm form = optim::form_of(kind, options.optimizer.moment_type);
    bytes.push_back(slices / form.elements * static_cast<std::int64_t>(size_of(form.dtype)));
  }
  if (factors > 0) bytes.push_back(factors * 4);
  if (options.compression) {
    for (const std::int64_t each : compressed_bytes(options, plan)) bytes.push_back(each);
  }
  if (options.average.active()) bytes.push_back((slices + frozen) * 4);
  if (published > 0) bytes.push_back(published);
  return bytes;
}

}  // namespace

BufferSpec checkpoint_reading_buffer() {
  return {"checkpoint.reading", Category::kCheckpoint, DType::kU8, checkpoint::kBlockBytes, kInit,
          Home::kHost};
}

std::vector<BufferSpec> checkpoint_buffers(const TrainingOptions& options, bool saves,
                                           const sharding::ShardingPlan& plan) {
  std::vector<BufferSpec> buffers = {
      sharding::Agreement<CheckpointWord>::buffer("checkpoint", plan.mesh.world_size()),
      checkpoint_reading_buffer()};
  if (saves) {
    const sharding::OffloadOptions offload =
        options.optimizer.offload.on_host ? sharding::OffloadOptions() : options.optimizer.offload;
    std::int64_t bytes = checkpoint::staging_bytes(bytes_by_kind(options, plan, offload));
    // What is on disk isn't waited for: it only passes through the ring.
    if (offload.active()) {
      bytes = std::min(bytes + 8 * checkpoint::kBlockBytes,
                       checkpoint::staging_bytes(bytes_by_kind(options, plan, {})));
    }
    if (options.staging_bytes > 0) bytes = std::min(bytes, options.staging_bytes);
    buffers.push_back(
        {"checkpoint.ring", Category::kCheckpoint, DType::kU8, bytes, kAlways, Home::kHost});
  }
  return buffers;
}

std::string isa_of(const sharding::Rank& rank) {
  const bool cpu = rank.compute().device() == DeviceKind::kCpu;
  return cpu ? std::string(kernels::name_of(kernels::isa())) : std::string();
}

Checkpointing::Checkpointing(const TrainingOptions& options, const CheckpointOptions& checkpoints,
                             ShardedModel& model, TrainingStep& training_step, OnMessage on_message)
    : options_(options),
      checkpoints_(checkpoints),
      model_(model),
      training_step_(training_step),
      on_message_(std::move(on_message)),
      words_(model.rank(), "checkpoint"),
      reading_(model.rank().acquire(checkpoint_reading_buffer())) {
  if (OffloadHome* const disk = rank().offload_home.get()) {
    copy_ = [disk](const void* from, void* to, std::int64_t bytes) {
      if (disk->has(from) || disk->has(to)) return disk->copy(from, to, bytes);
      std::memcpy(to, from, static_cast<std::size_t>(bytes));
    };
  }
  if (!rank().separate_memory()) return;
  copies_ = rank().make_stream(StreamPurpose::kCopy, "checkpoint");
  copy_ = [this](const void* from, void* to, std::int64_t bytes) {
    copies_->copy(from, to, bytes);
    copies_->synchronize();
  };
}

void Checkpointing::wait_together(
    const std::string& label, const std::function<bool(std::chrono::milliseconds most)>& is_over) {
  constexpr std::chrono::milliseconds kLongest{50};
  for (std::chrono::milliseconds between{1};; between = std::min(2 * between, kLongest)) {
    const CheckpointWord own{.loaded = is_over(between) ? 1.0 : 0.0};
    const auto words = exchange(label, own);
    if (std::ranges::all_of(words, [](const CheckpointWord& word) { return word.loaded == 1.0; }))
      return;
  }
}

sharding::CopyState Checkpointing::telling_copy(const std::string& label) {
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kBetween{200};
  return
      [this, label, told = Clock::now()](const void* from, void* to, std::int64_t bytes) mutable {
        if (copy_) {
          copy_(from, to, bytes);
        } else {
          std::memcpy(to, from, static_cast<std::size_t>(bytes));
        }
        if (Clock::now() - told < kBetween) return;
        exchange(label, {});
        told = Clock::now();
      };
}

}  // namespace sherd::engine
