/// The model that an adapter is for: where its weights come from, and how a checkpoint knows it again.
///
/// A checkpoint of a run with an adapter holds what is trained, and under "base" of its manifest the
/// digest of what isn't (engine/train/units/frozen_weights.h) and the path that it came from.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/store/committed.h"
#include "engine/huggingface/weights.h"
#include "engine/train/sharded_model.h"
#include "sharding/state/state.h"

namespace sherd::engine {

/// A Hugging Face folder or a checkpoint of a whole model, opened and compared with the run's model.
class BaseModel {
 public:
  /// Errors   UsageError for a checkpoint of an adapter; DataError.
  BaseModel(const TrainingOptions& options, const std::string& path,
            checkpoint::Disk& disk = checkpoint::posix_disk());

  /// Every parameter of the model without its adapters.
  const std::vector<sharding::StateTensor>& tensors() const { return tensors_; }
  /// Pieces of f32 tensors, by their names; those that the model hasn't are left as they are.
  void load(const sharding::State& wanted, Tensor reading, const sharding::CopyState& copy) const;

 private:
  std::vector<sharding::StateTensor> tensors_;
  std::shared_ptr<const huggingface::FolderWeights> folder_;
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
};

/// Fills `model` from there: what is frozen, and what is
/// trained of the model's own modules. A collective; returns the digest. Publish the units after it.
std::string load_base_model(const BaseModel& base, const TrainingOptions& options,
                            ShardedModel& model, Tensor reading, const sharding::CopyState& copy);
/// The same digest without a model to fill.
std::string digest_of_base(const BaseModel& base, const TrainingOptions& options);

/// Errors   UsageError, a line, if the checkpoint's adapter isn't for the model with this digest.
void require_same_base(const checkpoint::Checkpoint& checkpoint, const std::string& digest,
                       const std::string& path);
/// From now on, until the object ends, the checkpoint's run doesn't remove it (checkpoint/store/retention.h).
/// Errors   DataError if it has removed it already.
void require_held(const checkpoint::Checkpoint& checkpoint);
/// Errors   UsageError if the checkpoint holds an adapter and no model.
void require_whole_model(const checkpoint::Checkpoint& checkpoint);

}  // namespace sherd::engine
