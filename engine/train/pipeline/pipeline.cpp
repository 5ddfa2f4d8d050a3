#include "engine/train/pipeline/pipeline.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "engine/model/transformer.h"
#include "engine/schedule/validate.h"
#include "engine/train/layout/sharding_plan.h"
#include "engine/train/units/unit_runner.h"

namespace sherd::engine {

using schedule::Action;
using schedule::ActionKind;

namespace {

Direction direction_of(ActionKind kind) {
  const bool forward =
      kind == ActionKind::kSendActivations || kind == ActionKind::kReceiveActivations;
  return forward ? Direction::kForward : Direction::kBackward;
}

// Messages go between a chunk and the next one, or the one before.
int boundary_of(const Action& action) {
  const bool to_next =
      action.kind == ActionKind::kSendActivations || action.kind == ActionKind::kReceiveGradients;
  return to_next ? action.chunk : action.chunk - 1;
}

bool one_set_for_all(const model::ModelShape& shape) {
  return shape.recompute == model::Recompute::kFull;
}

// Micro-batches whose tokens a rank needs at a time: from the first forward on it to the last input
// gradient, or without backwards to the last forward.
int most_under_way(const RankPipeline& pipeline, const std::vector<Action>& actions, bool trains) {
  std::vector<std::size_t> begun, ended;  // of its chunks, by micro-batch
  const auto count = [](std::vector<std::size_t>& counts, int micro_batch) {
    const auto index = static_cast<std::size_t>(micro_batch);
    if (index >= counts.size()) counts.resize(2 * index + 1, 0);
    return ++counts[index];
  };
  int under_way = 0, most = 0;
  for (const Action& action : actions) {
    const bool forward = action.kind == ActionKind::kForward;
    if (forward && count(begun, action.micro_batch) == 1) most = std::max(most, ++under_way);
    const bool ends = trains ? schedule::makes_input_gradient(action.kind) : forward;
    if (ends && count(ended, action.micro_batch) == pipeline.chunks.size()) --under_way;
  }
  return most;
}

int most_under_way_of_step(const RankPipeline& pipeline) {
  return pipeline.whole() ? 1 : most_under_way(pipeline, pipeline.actions(), true);
}

// A rank with one part of the model has done with a pass when it begins the next.
int most_under_way_of_passes(const RankPipeline& pipeline) {
  if (pipeline.chunks.size() == 1) return 1;
  return most_under_way(pipeline, pass_actions(pipeline, passes_at_once(pipeline)), false);
}

// Inputs, targets, with separate documents what says where these lie, and with a teacher its tokens.
std::int64_t tokens_numel(const TrainingOptions& options) {
  const std::int64_t tokens = options.model.tokens();
  return 2 * tokens + (options.separate_documents ? 3 * tokens + 1 : 0) +
         2 * tokens * options.model.teacher.top;
}

std::vector<BufferSpec> token_buffers(const TrainingOptions& options,
                                      const RankPipeline& pipeline) {
  // One alone stays where it is.
  const auto copies = [](int under_way) { return under_way > 1 ? under_way : 0; };
  const int in_steps =
      options.placement.has_gradients ? copies(most_under_way_of_step(pipeline)) : 0;
  const int in_passes = copies(most_under_way_of_passes(pipeline));
  std::vector<BufferSpec> buffers;
  for (int i = 0; i < std::max(in_steps, in_passes); ++i) {
    Phases phases = 0;
    if (i < in_steps) phases |= kForwardToBackward;
    if (i < in_passes) phases |= kEvaluation;
    buffers.push_back({fmt::format("micro_batch.{}", i), Category::kData, DType::kI32,
                       tokens_numel(options), phases});
  }
  return buffers;
}

std::optional<BufferSpec> logits_buffer(const TrainingOptions& options,
                                        const RankPipeline& pipeline) {
  if (pipeline.whole()) return std::nullopt;
  return BufferSpec{"pipeline.logits", Category::kActivations, options.model.dtype,
                    options.model.vocab_size, kEvaluation};
}

}  // namespace

std::vector<BufferSpec> Pipeline::buffers(const TrainingOptions& options,
                                          const RankPipeline& pipeline, const sharding::Mesh& mesh,
                                          int rank) {
  if (mesh.is_owner(rank)) return {};
  std::vector<BufferSpec> buffers =
      channel_buffers(channel_ends(pipeline, mesh, rank), rank_model(options, mesh, rank));
  for (BufferSpec& buffer : token_buffers(options, pipeline)) buffers.push_back(buffer);
  if (auto logits = logits_buffer(options, pipeline)) buffers.push_back(std::move(*logits));
  return buffers;
}

sharding::Traffic Pipeline::traffic(const TrainingOptions& options, const RankPipeline& pipeline,
                                    const sharding::Mesh& mesh, int rank) {
  return channel_traffic(channel_ends(pipeline, mesh, rank), rank_model(options, mesh, rank),
                         options.num_micro_steps);
}

Pipeline::Pipeline(const TrainingOptions& options, RankPipeline pipeline, UnitRunner& runner)
    : options_(options), pipeline_(std::move(pipeline)), runner_(runner) {
  const sharding::Rank& rank = runner.rank();
  const auto violation = schedule::first_violation(*pipeline_.plan.schedule);
  SHERD_CHECK(!violation, "the schedule can't be executed: {}", violation->text);
  channels_ =
      std::make_unique<Channels>(pipeline_, rank_model(options, rank.mesh, rank.rank), rank);
  if (!runner.computes()) return;
  for (const BufferSpec& buffer : token_buffers(options, pipeline_)) {
    tokens_.push_back(rank.acquire(buffer));
  }
  logits_ = rank.acquire(logits_buffer(options, pipeline_));
}

Pipeline::~Pipeline() = default;

void Pipeline::train(const std::function<model::Pass(int)>& pass_of) {
  if (!runner_.computes()) {
    receive();
  } else {
    pipeline_.whole() ? train_whole(pass_of) : train_part(pass_of);
  }
  runner_.gradients().finish();
}

// An owner's step. What it has published is sent by now: workers computed with it.
void Pipeline::receive() {
  runner_.parameters().settle();
  for (int micro_batch = 0; micro_batch < options_.num_micro_steps; ++micro_batch) {
    for (const Phase phase : {kForward, kLoss, kBackward}) runner_.rank().memory->enter(phase);
    runner_.gradients().begin_micro_step(micro_batch);
    runner_.receive_gradients(pipeline_.chunks.front());
  }
}

// All blocks have a place of their own, and nothing is sent.
void Pipeline::train_whole(const std::function<model::Pass(int)>& pass_of) {
  const Chunk& chunk = pipeline_.chunks.front();
  for (int micro_batch = 0; micro_batch < options_.num_micro_steps; ++micro_batch) {
    const model::Pass pass = pass_of(micro_batch);
    runner_.rank().memory->enter(kForward);
    runner_.forward(chunk, pass);
    runner_.rank().memory->enter(kLoss);
    runner_.gradients().begin_micro_step(micro_batch);
    runner_.backward(chunk, pass);
    runner_.add_step_losses(pass, micro_batch == 0);
  }
}

void Pipeline::train_part(const std::function<model::Pass(int)>& pass_of) {
  book_ = std::make_unique<SlotBook>(pipeline_, one_set_for_all(options_.model), true);
  keeps_tokens_ = most_under_way_of_step(pipeline_) > 1;
  next_pass_ = pass_of;
  passes_.clear();
  tokens_of_.clear();
  runner_.rank().memory->enter(kForward);
  channels_->begin();
  has_lost_ = false;
  run_list(pipeline_.actions(), kForward, {});
  channels_->finish();
}

// `after` is called after each action.
void Pipeline::run_list(const std::vector<Action>& actions, Phase phase,
                        const std::function<void(const Action&)>& after) {
  const bool first_time =
      known_lists_.emplace(phase, runner_.transformer().shape().residual_tokens()).second;
  for (std::size_t at = 0; at < actions.size(); ++at) {
    if (!first_time) post_ahead(actions, at);
    run(actions[at], phase);
    if (after) after(actions[at]);
  }
}

void Pipeline::forward(const model::Pass& pass, Phase phase) {
  if (pipeline_.whole()) {
    runner_.rank().memory->enter(phase);
    return runner_.forward(pipeline_.chunks.front(), pass);
  }
  next_pass_ = [&](int) { return pass; };
  run_passes(1, phase, {});
}

void Pipeline::evaluate(int num_passes, const std::function<model::Pass(int)>& pass_of,
                        const std::function<void(int)>& after_head) {
  if (pipeline_.whole()) {
    for (int i = 0; i < num_passes; ++i) {
      const model::Pass pass = pass_of(i);
      forward(pass, kEvaluation);
      runner_.evaluate_head(pass);
      after_head(i);
    }
    return;
  }
  next_pass_ = pass_of;
  run_passes(num_passes, kEvaluation, [&](int pass) {
    runner_.evaluate_head(this->pass_of(pass));
    after_head(pass);
  });
}

// `after_blocks` is called where the head is.
void Pipeline::run_passes(int num_passes, Phase phase,
                          const std::function<void(int)>& after_blocks) {
  book_ = std::make_unique<SlotBook>(pipeline_, one_set_for_all(options_.model), false);
  keeps_tokens_ = num_passes > 1 && most_under_way_of_passes(pipeline_) > 1;
  passes_.clear();
  tokens_of_.clear();
  runner_.rank().memory->enter(phase);
  channels_->begin();
  run_list(pass_actions(pipeline_, num_passes), phase, [&](const Action& action) {
    if (action.kind != ActionKind::kForward) return;
    if (after_blocks && pipeline_.chunk(action.chunk).head) after_blocks(action.micro_batch);
    if (action.chunk == pipeline_.chunks.back().number) {
      passes_.erase(action.micro_batch);
      tokens_of_.erase(action.micro_batch);
    }
  });
  channels_->finish();
}

// Within the next two computations: this one and the one after it.
void Pipeline::post_ahead(const std::vector<Action>& actions, std::size_t at) {
  if (!schedule::is_compute(actions[at].kind)) return;
  int computations = 0;
  for (std::size_t next = at; next < actions.size() && computations <= 2; ++next) {
    if (schedule::is_compute(actions[next].kind)) ++computations;
    if (!schedule::is_receive(actions[next].kind)) continue;
    channels_->post(boundary_of(actions[next]), direction_of(actions[next].kind),
                    actions[next].micro_batch);
  }
}

void Pipeline::run(const Action& action, Phase phase) {
  TraceSpan span(runner_.rank().compute(), schedule::text_of(action));
  switch (action.kind) {
    case ActionKind::kForward:
      return forward(action, phase);
    case ActionKind::kBackward:
    case ActionKind::kInputGradient:
      return backward(action);
    case ActionKind::kWeightGradient:
      return weight_gradients(action);
    case ActionKind::kSendActivations:
    case ActionKind::kSendGradients:
      return channels_->send(boundary_of(action), direction_of(action.kind), action.micro_batch);
    case ActionKind::kReceiveActivations:
    case ActionKind::kReceiveGradients:
      // The computation after it takes it.
      return channels_->post(boundary_of(action), direction_of(action.kind), action.micro_batch);
    default:
      SHERD_CHECK(false, "{} in a list that a run executes", schedule::text_of(action));
  }
}

void Pipeline::copy(const ConstTensor& from, const Tensor& to) {
  SHERD_CHECK(from.bytes() == to.bytes(), "{} bytes to {}", from.bytes(), to.bytes());
  runner_.rank().compute().copy(from.data, to.data, to.bytes());
}

// A batch's memory serves the one after the next; what is still under way then has a copy.
model::Pass Pipeline::kept(const model::Pass& pass, int micro_batch) {
  std::size_t free = 0;
  const auto taken = [&] {
    return std::ranges::any_of(tokens_of_, [&](const auto& entry) { return entry.second == free; });
  };
  while (taken()) ++free;
  tokens_of_[micro_batch] = free;
  std::int64_t begin = 0;
  const auto copied = [&](const ConstTensor& from) -> ConstTensor {
    Tensor to = tokens_[free].tensor().part(begin, from.numel);
    to.dtype = from.dtype;  // probabilities have the size of ids
    begin += from.numel;
    copy(from, to);
    return to;
  };
  model::Pass kept = pass;
  kept.inputs = copied(pass.inputs);
  kept.targets = copied(pass.targets);
  if (pass.documents.starts) {
    kept.documents = {copied(pass.documents.starts), copied(pass.documents.lengths),
                      copied(pass.documents.positions)};
  }
  if (pass.teacher_ids) {
    kept.teacher_ids = copied(pass.teacher_ids);
    kept.teacher_probabilities = copied(pass.teacher_probabilities);
  }
  return kept;
}

const model::Pass& Pipeline::pass_of(int micro_batch) {
  if (const auto found = passes_.find(micro_batch); found != passes_.end()) return found->second;
  const model::Pass pass = next_pass_(micro_batch);
  return passes_[micro_batch] = keeps_tokens_ ? kept(pass, micro_batch) : pass;
}

// The transformer remembers where it stands.
void Pipeline::stand(const Chunk& chunk, const SlotBook::Place& place) {
  runner_.transformer().stand({chunk.first_block, place.residuals, place.kept, place.waiting});
  std::string names;
  for (const auto* slots : {&place.residuals, &place.kept}) {
    for (const int slot : *slots) names += fmt::format("{} ", slot);
  }
  runner_.set_slots(std::move(names));
}

void Pipeline::forward(const Action& action, Phase phase) {
  runner_.rank().memory->enter(phase);
  const Chunk& chunk = pipeline_.chunk(action.chunk);
  const SlotBook::Place& place = book_->begin(action);
  const model::Pass& pass = pass_of(action.micro_batch);
  stand(chunk, place);
  standing_ = {action.chunk, action.micro_batch};
  model::Transformer& transformer = runner_.transformer();
  if (pipeline_.receives(chunk)) {
    const int boundary = chunk.number - 1;
    const Tensor input = channels_->receive(boundary, Direction::kForward, action.micro_batch);
    const Tensor first = transformer.residual_TD(chunk.first_block);
    copy(input.part(0, first.numel), first);
    channels_->release(boundary, Direction::kForward);
  }
  runner_.forward(chunk, pass, [&] {
    if (!pipeline_.sends(chunk)) return;
    transformer.write_output_to(channels_->outbox(chunk.number, Direction::kForward));
  });
  book_->end(action);
}

void Pipeline::backward(const Action& action) {
  const Chunk& chunk = pipeline_.chunk(action.chunk);
  const SlotBook::Place& place = book_->begin(action);
  const model::Pass& pass = pass_of(action.micro_batch);
  model::Transformer& transformer = runner_.transformer();
  // On a rank without the head the phase of losses is the begin of the first backward. (Later, a
  // slot of gradients that is being reduced would die in it.)
  runner_.rank().memory->enter(chunk.head || !has_lost_ ? kLoss : kBackward);
  has_lost_ = true;
  const bool input_alone = action.kind == ActionKind::kInputGradient;
  if (input_alone || standing_ != std::pair(action.chunk, action.micro_batch)) {
    stand(chunk, place);
    standing_ = {action.chunk, action.micro_batch};
  }
  if (place.gradient_in >= 0) {
    copy(transformer.residual_slot(place.gradient_in), transformer.residual_gradient());
  } else if (pipeline_.sends(chunk)) {
    copy(channels_->receive(chunk.number, Direction::kBackward, action.micro_batch),
         transformer.residual_gradient());
    channels_->release(chunk.number, Direction::kBackward);
  }
  runner_.gradients().begin_micro_step(action.micro_batch);
  runner_.backward(chunk, pass, input_alone);
  if (chunk.head) runner_.add_step_losses(pass, action.micro_batch == 0);
  if (place.gradient_out >= 0) {
    copy(transformer.residual_gradient(), transformer.residual_slot(place.gradient_out));
  } else if (pipeline_.receives(chunk)) {
    copy(transformer.residual_gradient(),
         channels_->outbox(chunk.number - 1, Direction::kBackward));
  }
  book_->end(action);
  if (chunk.number == pipeline_.chunks.front().number) {
    passes_.erase(action.micro_batch);
    tokens_of_.erase(action.micro_batch);
  }
}

void Pipeline::weight_gradients(const Action& action) {
  const Chunk& chunk = pipeline_.chunk(action.chunk);
  stand(chunk, book_->begin(action));
  standing_ = {action.chunk, action.micro_batch};
  runner_.gradients().begin_micro_step(action.micro_batch);
  runner_.weight_gradients(chunk);
  book_->end(action);
}

}  // namespace sherd::engine
