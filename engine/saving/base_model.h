/// The model that an adapter is for: where its weights come from, and how a checkpoint identifies
/// it.
///
/// A checkpoint of a run with an adapter holds the trained parameters. Under "base", its manifest
/// has the digest of the frozen ones (engine/train/units/frozen_weights.h) and their path.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/store/committed.h"
#include "engine/huggingface/weights.h"
#include "engine/train/sharded_model.h"
#include "sharding/state/state.h"

namespace sherd::engine {

/// A Hugging Face folder or a checkpoint of a whole model, opened and compared with the run's
/// model.
class BaseModel {
 public:
  /// Errors   UsageError for a checkpoint of an adapter; DataError.
  BaseModel(const TrainingOptions& options, const std::string& path,
            checkpoint::Disk& disk = checkpoint::posix_disk());

  /// Every parameter of the model without its adapters.
  const std::vector<sharding::StateTensor>& tensors() const { return tensors_; }
  /// Loads pieces of f32 tensors by name; tensors that the model doesn't have are left unchanged.
  void load(const sharding::State& wanted, Tensor reading, const sharding::CopyState& copy) const;

 private:
  std::vector<sharding::StateTensor> tensors_;
  std::shared_ptr<const huggingface::FolderWeights> folder_;
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
};

/// Fills `model`: frozen parameters, and the model's own modules that are trained. A collective;
/// returns the digest. Publish the units afterwards.
std::string load_base_model(const BaseModel& base, const TrainingOptions& options,
                            ShardedModel& model, Tensor reading, const sharding::CopyState& copy);
/// Fills `model`'s frozen parameters alone. A collective, as above; returns the digest.
std::string load_frozen(const BaseModel& base, ShardedModel& model, Tensor reading);
/// The same digest without a model to fill.
std::string digest_of_base(const BaseModel& base, const TrainingOptions& options);

/// Errors   UsageError, in one line, if the checkpoint's adapter belongs to a model with another
///          digest.
void require_same_base(const checkpoint::Checkpoint& checkpoint, const std::string& digest,
                       const std::string& path);
/// Until the object ends, the checkpoint's run doesn't remove it (checkpoint/store/retention.h).
/// Errors   DataError if it has been removed already.
void require_held(const checkpoint::Checkpoint& checkpoint);
/// Errors   UsageError if the checkpoint holds only an adapter.
void require_whole_model(const checkpoint::Checkpoint& checkpoint);

}  // namespace sherd::engine
