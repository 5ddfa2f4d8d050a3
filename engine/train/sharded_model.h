/// One rank's part of a model: the units it holds slices of, the streams' traffic around them, and
/// the transformer that computes on full units while they are there.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/exact_sum.h"
#include "engine/model/pass.h"
#include "engine/train/training_options.h"
#include "sharding/mesh/mirrored_buffer.h"
#include "sharding/zero/gradient_reduction.h"
#include "sharding/zero/parameter_gather.h"

namespace sherd::model {
class Transformer;
struct Affine;
struct ModelShape;
template <class T>
struct PerSite;
}  // namespace sherd::model

namespace sherd::engine {

class FrozenWeights;
class Pipeline;
class ModelCollectives;
struct Chunk;

/// Where losses are added up.
BufferSpec loss_sum_buffer();
/// What a rank acquires to compute its part of a model that is cut over tensor or context ranks; nothing of a whole one.
std::vector<BufferSpec> tensor_buffers(const model::ModelShape& part);

class ShardedModel {
 public:
  /// Acquires every buffer and fills this rank's slices with the initial values of `options.seed`,
  /// which depend neither on the stage nor on the world. When it has been made they are there: nothing is still on its way.
  ShardedModel(const TrainingOptions& options, const sharding::Rank& rank);
  ~ShardedModel();

  const sharding::Rank& rank() const { return rank_; }
  const std::vector<sharding::UnitState>& units() const { return units_; }
  sharding::ParameterGather& parameters() { return parameters_; }
  sharding::GradientReduction& gradients() { return gradients_; }
  model::Transformer& transformer() { return *transformer_; }

  /// Whether losses arise here; in a pipeline one rank has the head.
  bool has_head() const { return has_head_; }
  /// A unit's number in the parameter table.
  int number_of(std::size_t unit) const { return numbers_[unit]; }
  /// Places in `units` of what this rank has (CHECK).
  int block_unit(int block) const { return local(1 + block); }
  /// The gradients of a tied matrix's two uses, both here, are summed apart.
  bool ends_apart() const;
  int head_unit() const { return local(tied_ ? 0 : 1 + num_blocks_); }

  /// What a step uses, and an evaluation's passes, in order: places in `units`.
  std::vector<int> training_uses() const;
  std::vector<int> evaluation_uses(int num_passes = 1) const;

  /// For a model that will only be used, on a CPU, and whose parameters are all here: turns its matrices into what a step of
  /// decoding reads fastest (kernels/interleaved.h), in their place. Nothing that it gives changes a bit. False, and
  /// nothing is done, where one matrix can't be turned, parameters come and go or are parts, or the device is a GPU.
  bool interleave_weights();

  /// Frozen parameters, where there are any: engine/train/frozen_weights.h.
  FrozenWeights& frozen() const { return *frozen_; }

  /// All forwards and backwards of a step; Pipeline::train.
  void train(const std::function<model::Pass(int micro_batch)>& pass_of);
  /// Passes without a backward, of which at most so many may be asked for together; Pipeline::evaluate.
  int passes_at_once() const;
  void evaluate(int num_passes, const std::function<model::Pass(int pass)>& pass_of,
                const std::function<void(int pass)>& behind_head);
  /// Everything before the head in one pass without a backward; each unit is gathered, used and released.
  void forward(const model::Pass& pass, Phase phase = kEvaluation);
  /// Head and loss without gradients. Nothing on a rank without the head.
  void evaluate_head(const model::Pass& pass);
  /// Logits of the pass's tokens [first, first + count), of one sequence, counted over all context ranks, at most most_logits() of them: [count, V], all of V, of
  /// the compute type, in device memory, on every rank.
  Tensor logits(std::int64_t first, std::int64_t count);
  std::int64_t most_logits() const;
  std::int64_t vocab_size() const { return options_.model.vocab_size; }

  /// A chunk's part of a pass: its embedding and blocks. `before_output`, if given, is called before the last
  /// block.
  void forward(const Chunk& chunk, const model::Pass& pass,
               const std::function<void()>& before_output = {});
  /// Head and loss, the blocks, and the embedding; each unit's gradient is closed when it is whole.
  /// `input_alone`: the blocks' weight gradients come later, in `weight_gradients`.
  void backward(const Chunk& chunk, const model::Pass& pass, bool input_alone = false);
  void weight_gradients(const Chunk& chunk);

  /// Processor time that messages of a pipeline and in a ring have taken, in total.
  std::chrono::nanoseconds message_cpu_time() const;
  /// How long the compute stream has stood still for other ranks, in total: waiting for other streams, and in the
  /// model's own exchanges. On a GPU that is known when its work is done.
  struct Waits {
    std::chrono::nanoseconds all{0};
    /// For which axes (sharding/mesh/waits.h), those with several ranks, the same list on every rank.
    std::vector<std::pair<std::string, std::chrono::nanoseconds>> by_axis{};
  };
  Waits waits() const;

  /// Adds the last pass's losses of the first `num_tokens` tokens, in f64, to a sum on the device;
  /// `first`: the sum begins with them.
  void add_losses(std::int64_t num_tokens, bool first);
  /// That sum. Blocks until it is there.
  ExactSum loss_sum();

 private:
  void zero(const Tensor& gradient);
  model::PerSite<model::Affine> block_gradients(int unit, const std::vector<Tensor>& views) const;
  Tensor whole_logits(const Tensor& own);
  Tensor from_context_rank(const Tensor& own, int owner);
  int local(int unit) const;
  std::vector<int> local(std::vector<int> units) const;
  void section(const char* label, int unit, const std::vector<Tensor>& parameters,
               const std::vector<Tensor>& gradients, const model::Pass& pass,
               const std::function<void()>& enqueue);

  const TrainingOptions& options_;
  const sharding::Rank& rank_;
  int num_blocks_;
  bool tied_, has_head_;
  std::vector<int> numbers_;  // of units
  std::vector<sharding::UnitState> units_;
  std::unique_ptr<FrozenWeights> frozen_;
  sharding::ParameterGather parameters_;
  sharding::GradientReduction gradients_;
  std::unique_ptr<ModelCollectives> collectives_;  // of a model that is cut
  Buffer logits_;
  std::unique_ptr<model::Transformer> transformer_;
  sharding::MirroredBuffer loss_sum_;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace sherd::engine
