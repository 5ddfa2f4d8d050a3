/// A rank's part of a step, action by action: executes the list made by engine/schedule on this
/// rank's chunks. Without a pipeline: forward and backward of the whole model, one micro-batch
/// after the other.
///
/// As without a pipeline (sharding/zero), units are gathered and reduced one by one during an
/// action. This overlaps more than gathering and reducing whole chunks between actions. So the
/// lists that runs execute have messages, but no gathers or reductions.
///
/// Receives that the next two computations need are posted beforehand, and sends overlap the
/// following ones. A list that runs for the first time posts nothing beforehand: CUDA loads a
/// kernel when it is first launched, and may first wait for all that the GPU has begun. A receive
/// that depends on the same kernel's result would then wait forever. (CUDA C++ programming guide,
/// lazy loading.)
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/model/pass.h"
#include "engine/train/layout/slot_book.h"
#include "engine/train/pipeline/channels.h"

namespace sherd::engine {

class UnitRunner;

class Pipeline {
 public:
  /// Drives `runner`, which outlives it.
  Pipeline(const TrainingOptions& options, RankPipeline pipeline, UnitRunner& runner);
  ~Pipeline();

  /// What it acquires, except for the model's slots.
  static std::vector<BufferSpec> buffers(const TrainingOptions& options,
                                         const RankPipeline& pipeline, const sharding::Mesh& mesh,
                                         int rank);
  static sharding::Traffic traffic(const TrainingOptions& options, const RankPipeline& pipeline,
                                   const sharding::Mesh& mesh, int rank);

  const RankPipeline& plan() const { return pipeline_; }

  /// All forwards and backwards of a step. `pass_of` returns a micro-batch when it is first needed,
  /// in order, valid until the next call.
  void train(const std::function<model::Pass(int micro_batch)>& pass_of);

  /// Passes without a backward, which follow one another through a pipeline's ranks: embedding,
  /// blocks and, on the rank that has it, the head. `pass_of` as for `train`; `after_head` is
  /// called after a pass's head, in the order of the passes. The uses of the ranks' parameters are
  /// planned before (ShardedModel::evaluation_uses).
  void evaluate(int num_passes, const std::function<model::Pass(int pass)>& pass_of,
                const std::function<void(int pass)>& after_head);
  /// The embedding and the blocks of one pass.
  void forward(const model::Pass& pass, Phase phase);

  /// Copies the last result of the rank with the head, [count] of the compute type, to every rank
  /// of the pipeline.
  Tensor from_head(const Tensor& of_head, std::int64_t count);

  /// Processor time of the channels' threads, in total.
  std::chrono::nanoseconds message_cpu_time() const { return channels_->cpu_time(); }

 private:
  using Action = schedule::Action;
  void train_whole(const std::function<model::Pass(int)>& pass_of);
  void receive();
  void train_part(const std::function<model::Pass(int)>& pass_of);
  void run_passes(int num_passes, Phase phase, const std::function<void(int)>& after_blocks);
  void run(const Action& action, Phase phase);
  void forward(const Action& action, Phase phase);
  void backward(const Action& action);
  void weight_gradients(const Action& action);
  void run_list(const std::vector<Action>& actions, Phase phase,
                const std::function<void(const Action&)>& after);
  void post_ahead(const std::vector<Action>& actions, std::size_t at);
  void stand(const Chunk& chunk, const SlotBook::Place& place);
  const model::Pass& pass_of(int micro_batch);
  model::Pass kept(const model::Pass& pass, int micro_batch);
  void copy(const ConstTensor& from, const Tensor& to);

  const TrainingOptions& options_;
  const RankPipeline pipeline_;
  UnitRunner& runner_;
  std::unique_ptr<Channels> channels_;
  std::vector<Buffer> tokens_;  // of micro-batches in flight
  bool keeps_tokens_ = false;   // in tokens_: several may be in flight
  Buffer logits_;
  std::set<std::pair<Phase, std::int64_t>> known_lists_;  // that have run, and their pass's tokens

  // State of the current step or pass.
  std::unique_ptr<SlotBook> book_;
  std::function<model::Pass(int)> next_pass_;
  std::map<int, model::Pass> passes_;     // by micro-batch
  std::map<int, std::size_t> tokens_of_;  // by micro-batch, among tokens_
  bool has_lost_ = false;                 // a backward of the step has begun
  std::pair<int, int> standing_{-1, -1};  // chunk and micro-batch
};

}  // namespace sherd::engine
