/// One rank's units and how they are computed: gathers a unit's parameters, runs its part of the
/// transformer, and starts the reduction of its gradients.
///
/// A chunk is consecutive layers with the model's ends next to them
/// (engine/train/layout/pipeline_plan.h). engine/train/pipeline/pipeline.h decides the order of
/// chunks and micro-batches, and the messages between ranks.
///
///   forward(chunk)            each unit: get, compute, release
///   backward(chunk)           head and loss, then each layer from the last to the first: get and
///                             open, compute, release and close
///   weight_gradients(chunk)   the half that `backward(.., input_alone)` left for later
///
/// Memory   acquires its part of the state, the slots of gathers and reductions, and the
///          transformer's buffers (`buffers` lists them).
/// Order    what ParameterGather and GradientReduction ask for: uses in the planned order, one
///          micro-step at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/exact_sum.h"
#include "engine/model/pass.h"
#include "engine/train/layout/pipeline_plan.h"
#include "engine/train/layout/training_options.h"
#include "engine/train/units/loss_sums.h"
#include "kernels/device.h"
#include "sharding/mesh/mirrored_buffer.h"
#include "sharding/zero/gradient_reduction.h"
#include "sharding/zero/parameter_gather.h"

namespace sherd::model {
class Transformer;
struct Affine;
struct ExpertGradients;
template <class T>
struct PerSite;
}  // namespace sherd::model

namespace sherd::optim {
class CompressedSum;
}

namespace sherd::engine {

class AnswerLosses;
class KeptInputs;
class FrozenWeights;
class ModelCollectives;

class UnitRunner {
 public:
  UnitRunner(const TrainingOptions& options, const sharding::Rank& rank,
             const RankPipeline& pipeline);
  ~UnitRunner();

  /// Everything that the constructor acquires, for rank `rank`.
  static std::vector<BufferSpec> buffers(const TrainingOptions& options,
                                         const sharding::ShardingPlan& plan,
                                         const RankPipeline& pipeline,
                                         const kernels::ComputeDevice& device, int rank);

  /// Fills this rank's slices with the initial values of `options.seed`, which depend neither on
  /// the stage nor on the world, and publishes them; publishing is still running when it returns.
  void fill_initial_values();

  const sharding::Rank& rank() const { return rank_; }
  const std::vector<sharding::UnitState>& units() const { return units_; }
  sharding::ParameterGather& parameters() { return parameters_; }
  sharding::GradientReduction& gradients() { return gradients_; }
  optim::CompressedSum* compressed_sum() const { return compressed_sum_.get(); }  ///< null: none
  model::Transformer& transformer() { return *transformer_; }
  const model::Transformer& transformer() const { return *transformer_; }
  FrozenWeights& frozen() const { return *frozen_; }
  ModelCollectives* collectives() const { return collectives_.get(); }  ///< null: not cut

  /// Indices in `units` of the units of `uses` (SHERD_CHECK).
  std::vector<int> places(const std::vector<UnitId>& uses) const;
  int place(const UnitId& unit) const { return places({unit}).front(); }
  int block_place(int layer) const { return place({UnitRole::kLayer, layer, 0}); }
  int head_place() const { return place(head_unit(options_.model)); }
  bool has_head() const { return has_head_; }  ///< whether it computes losses
  /// Whether this rank computes; an owner (sharding/mesh/mesh.h) only updates.
  bool computes() const { return transformer_ != nullptr; }
  /// The part of the model that this rank computes, or whose state it owns.
  const model::ModelShape& shape() const { return shape_; }
  /// Whether the gradients of a tied matrix's two uses, both on this rank, are summed separately.
  bool ends_apart() const;

  /// `before_output`, if given, is called before the chunk's last layer.
  void forward(const Chunk& chunk, const model::Pass& pass,
               const std::function<void()>& before_output = {});
  /// Head and loss, multi-token prediction, the layers, and the embedding; each unit's gradient is closed when it is
  /// complete.
  void backward(const Chunk& chunk, const model::Pass& pass, bool input_alone = false);
  void weight_gradients(const Chunk& chunk);
  /// An owner's part of a backward: receives the gradients of each unit, in the order in which
  /// workers close them.
  void receive_gradients(const Chunk& chunk);
  /// Head and loss without gradients. Nothing on a rank without the head.
  void evaluate_head(const model::Pass& pass);
  /// Logits of the last pass's tokens [first, first + count), over the whole vocabulary and counted
  /// over all context ranks, on every rank that has the head; empty elsewhere.
  Tensor logits(std::int64_t first, std::int64_t count);
  std::int64_t most_logits() const;  ///< tokens in one call of `logits`

  /// Adds the last pass's losses of the first `num_tokens` tokens, in f64, to a sum on the device;
  /// `first`: the sum starts with them.
  void add_losses(std::int64_t num_tokens, bool first);
  /// The same for all tokens of a training pass, and to the sums of their sources; and their further
  /// losses (ModelShape::has_further_losses).
  void add_step_losses(const model::Pass& pass, bool first);
  /// The sums of add_losses and add_step_losses. Blocks until they are available; empty on a rank
  /// without the head.
  ExactSum loss_sum() { return has_head_ ? loss_sums_.total() : ExactSum(); }
  /// What a step's loss is the mean of; without TrainingOptions::preference the same.
  ExactSum step_loss_sum();
  std::vector<ExactSum> source_loss_sums() {
    return has_head_ ? loss_sums_.by_source() : std::vector<ExactSum>();
  }
  void set_source_of_row(std::function<int(std::int64_t row)> source) {
    loss_sums_.source_of_row = std::move(source);
  }
  /// The last pass's losses of its first `num_tokens` tokens; 0 without a target. Blocks until they
  /// are available. Empty on a rank without the head.
  std::vector<float> losses(std::int64_t num_tokens);
  /// Null without TrainingOptions::preference, or on a rank without the head.
  AnswerLosses* answers() { return answers_.get(); }
  std::vector<ExactSum> further_loss_sums() {
    return has_head_ ? loss_sums_.further_totals() : std::vector<ExactSum>();
  }

  /// Interleaves the matrices in place: ShardedModel::interleave_weights.
  bool interleave_weights();

  /// Which slots the current chunk uses, if several micro-batches are in flight: recorded
  /// sections depend on it.
  void set_slots(std::string slots) { slots_ = std::move(slots); }

 private:
  using Views = std::vector<Tensor>;
  /// A layer's units while in use: their indices, and the views of each part, empty for a part that
  /// it doesn't have.
  struct Layer {
    std::vector<int> places;
    std::vector<Views> parameters, gradients;
  };
  void publish_first(int unit);
  Layer layer(int block) const;
  void get(Layer& layer);
  void open(Layer& layer);
  void release(const Layer& layer);
  void close(const Layer& layer);
  bool adds(const Layer& layer) const;
  int part_of(int unit) const;
  const std::string& name_of(const Layer& layer) const;
  Views resident_views(int unit) const;
  model::PerSite<model::Affine> gradients_of(int block, Layer& layer);
  std::function<model::ExpertGradients()> next_gradients(int block, Layer& layer);
  /// Returns its end, after the backward of predictions: the head's norm, and what closes its unit.
  std::function<void()> head_backward(const model::Pass& pass, bool joined);
  void predict(const model::Pass& pass);
  void predictions_backward(const model::Pass& pass);
  void block_backward(int block, const model::Pass& pass, bool input_alone);
  void embedding_backward(const model::Pass& pass, bool joined);
  void zero(const Tensor& gradient);
  Tensor whole_logits(const Tensor& own);
  Tensor from_context_rank(const Tensor& own, int owner);
  void section(const char* label, int block, const Layer& layer, const model::Pass& pass,
               const std::function<void()>& enqueue);

  const TrainingOptions& options_;
  const sharding::Rank& rank_;
  const model::ModelShape shape_;
  bool tied_, has_head_, has_whole_model_;
  std::vector<sharding::UnitState> units_;
  std::map<UnitId, int> places_;
  std::unique_ptr<FrozenWeights> frozen_;
  sharding::ParameterGather parameters_;
  std::unique_ptr<optim::CompressedSum> compressed_sum_;
  sharding::GradientReduction gradients_;
  std::unique_ptr<ModelCollectives> collectives_;
  Buffer logits_;
  std::unique_ptr<model::Transformer> transformer_;  // null: an owner's
  std::unique_ptr<KeptInputs> inputs_;               // null: all of them are in memory
  LossSums loss_sums_;
  std::unique_ptr<AnswerLosses> answers_;
  std::string slots_;
};

}  // namespace sherd::engine
