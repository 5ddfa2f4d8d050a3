#include "engine/train/sharded_model.h"

#include <algorithm>

#include "core/offload_home.h"
#include "engine/train/answer_statistics.h"
#include "engine/train/expert_statistics.h"
#include "engine/train/layout/sharding_plan.h"
#include "engine/train/pipeline/pipeline.h"
#include "engine/train/qk_clip.h"
#include "engine/train/stability_statistics.h"
#include "engine/train/units/answer_losses.h"
#include "engine/train/units/model_collectives.h"
#include "engine/train/units/unit_runner.h"
#include "sharding/mesh/waits.h"

namespace sherd::engine {

std::vector<BufferSpec> ShardedModel::buffers(const TrainingOptions& options,
                                              const sharding::ShardingPlan& plan,
                                              const kernels::ComputeDevice& device, int rank) {
  const RankPipeline pipeline = rank_pipeline(options, plan.mesh, rank);
  std::vector<BufferSpec> buffers = UnitRunner::buffers(options, plan, pipeline, device, rank);
  for (BufferSpec& buffer : Pipeline::buffers(options, pipeline, plan.mesh, rank)) {
    buffers.push_back(std::move(buffer));
  }
  for (BufferSpec& buffer : ExpertStatistics::buffers(options, plan.mesh.world_size())) {
    buffers.push_back(std::move(buffer));
  }
  for (BufferSpec& buffer : StabilityStatistics::buffers(options, plan.mesh.world_size())) {
    buffers.push_back(std::move(buffer));
  }
  for (BufferSpec& buffer : AnswerStatistics::buffers(options, plan.mesh.world_size())) {
    buffers.push_back(std::move(buffer));
  }
  return buffers;
}

ShardedModel::ShardedModel(const TrainingOptions& options, const sharding::Rank& rank)
    : options_(options),
      rank_(rank),
      experts_(std::make_unique<ExpertStatistics>(options, rank)),
      stability_(std::make_unique<StabilityStatistics>(options, rank)),
      answers_(std::make_unique<AnswerStatistics>(options, rank)),
      qk_clip_(QkClip::of(options)) {
  RankPipeline pipeline = rank_pipeline(options, rank.mesh, rank.rank);
  runner_ = std::make_unique<UnitRunner>(options, rank, pipeline);
  pipeline_ = std::make_unique<Pipeline>(options, std::move(pipeline), *runner_);
  const std::vector<UnitId> table = all_units(options.model);
  num_table_units_ = static_cast<int>(table.size());
  for (const sharding::UnitState& unit : units()) {
    numbers_.push_back(static_cast<int>(std::ranges::find(table, unit.spec().id) - table.begin()));
  }
  // Guarded, because gathers are under way here: if anything fails before the run begins, they must
  // have left these buffers. And whoever loads weights over these values needn't wait for them any
  // more.
  rank.guard([&] { runner_->fill_initial_values(); });
}

ShardedModel::~ShardedModel() = default;

const std::vector<sharding::UnitState>& ShardedModel::units() const {
  return runner_->units();
}
sharding::ParameterGather& ShardedModel::parameters() {
  return runner_->parameters();
}
sharding::GradientReduction& ShardedModel::gradients() {
  return runner_->gradients();
}
optim::CompressedSum* ShardedModel::compressed_sum() const {
  return runner_->compressed_sum();
}
void ShardedModel::plan(std::vector<int> uses) {
  runner_->parameters().plan(std::move(uses));
}
void ShardedModel::publish(int unit, bool rounded, Stream* updating) {
  runner_->parameters().publish(unit, rounded, updating);
}
void ShardedModel::publish_kept(int unit, bool refresh) {
  runner_->parameters().publish_kept(unit, refresh);
}
bool ShardedModel::computes() const {
  return runner_->computes();
}
const model::ModelShape& ShardedModel::shape() const {
  return runner_->shape();
}
model::Transformer& ShardedModel::transformer() {
  return runner_->transformer();
}
FrozenWeights& ShardedModel::frozen() const {
  return runner_->frozen();
}
bool ShardedModel::has_head() const {
  return runner_->has_head();
}
int ShardedModel::block_unit(int block) const {
  return runner_->block_place(block);
}
int ShardedModel::head_unit() const {
  return runner_->head_place();
}
bool ShardedModel::interleave_weights() {
  return runner_->interleave_weights();
}
void ShardedModel::evaluate_head(const model::Pass& pass) {
  runner_->evaluate_head(pass);
}
std::int64_t ShardedModel::most_logits() const {
  return runner_->most_logits();
}
void ShardedModel::add_losses(std::int64_t num_tokens, bool first) {
  runner_->add_losses(num_tokens, first);
}
ExactSum ShardedModel::loss_sum() {
  return runner_->loss_sum();
}
void ShardedModel::set_source_of_row(std::function<int(std::int64_t)> source) {
  runner_->set_source_of_row(std::move(source));
}
std::vector<ExactSum> ShardedModel::source_loss_sums() {
  return runner_->source_loss_sums();
}
ExactSum ShardedModel::step_loss_sum() {
  return runner_->step_loss_sum();
}
void ShardedModel::set_answers(std::function<std::vector<Answer>(std::int64_t)> answers_of,
                               std::span<const double> reference) {
  AnswerLosses* answers = runner_->answers();
  if (answers == nullptr) return;
  answers->answers_of = std::move(answers_of);
  answers->reference = reference;
}
std::shared_ptr<const PreferenceReport> ShardedModel::preference_report() {
  if (!answers_->active()) return nullptr;
  AnswerLosses* own = runner_->answers();
  const bool counts = own != nullptr && rank_.contributes_tokens();
  return answers_->combine(counts ? &own->sums() : nullptr);
}
std::vector<float> ShardedModel::losses(std::int64_t num_tokens) {
  return runner_->losses(num_tokens);
}

std::vector<int> ShardedModel::training_uses() const {
  return runner_->places(step_uses(pipeline_->plan(), options_.model));
}

std::vector<int> ShardedModel::evaluation_uses(int num_passes) const {
  return runner_->places(pass_uses(pipeline_->plan(), options_.model, num_passes));
}

void ShardedModel::train(const std::function<model::Pass(int)>& pass_of) {
  if (computes()) parameters().plan(training_uses());
  experts_->begin();
  stability_->begin();
  pipeline_->train([&](int micro_batch) {
    model::Pass pass = pass_of(micro_batch);
    pass.expert_totals = experts_->totals();
    pass.previous_counts = experts_->previous();
    pass.attention_maxima = stability_->maxima();
    return pass;
  });
}

std::shared_ptr<const ExpertReport> ShardedModel::expert_report() {
  return experts_->add_up();
}

std::shared_ptr<const StabilityReport> ShardedModel::stability_report(
    std::span<const std::int64_t> num_targets) {
  if (!stability_->active()) return nullptr;
  return stability_->combine(runner_->further_loss_sums(), num_targets);
}

void ShardedModel::correct_router(int unit, const ExpertReport& report) {
  experts_->correct_router(units()[static_cast<std::size_t>(unit)], report);
}
void ShardedModel::remember(const ExpertReport& report) {
  experts_->set_previous(report);
}
std::int64_t ShardedModel::num_clipped_heads(const StabilityReport* report) const {
  return qk_clip_ ? qk_clip_->num_clipped(*report) : 0;
}
bool ShardedModel::clip_heads(int unit, const StabilityReport& report) {
  return qk_clip_->apply(rank_.compute(), units()[static_cast<std::size_t>(unit)], report);
}
const std::vector<std::int64_t>& ShardedModel::expert_counts() const {
  return experts_->previous_counts();
}
void ShardedModel::set_expert_counts(const std::vector<std::int64_t>& counts) {
  experts_->set_previous(counts);
}

int ShardedModel::passes_at_once() const {
  return engine::passes_at_once(pipeline_->plan());
}

void ShardedModel::evaluate(int num_passes, const std::function<model::Pass(int)>& pass_of,
                            const std::function<void(int)>& after_head) {
  if (!computes()) return;
  parameters().plan(evaluation_uses(num_passes));
  pipeline_->evaluate(num_passes, pass_of, after_head);
}

void ShardedModel::forward(const model::Pass& pass, Phase phase) {
  pipeline_->forward(pass, phase);
}

Tensor ShardedModel::logits(std::int64_t first, std::int64_t count) {
  const Tensor logits = runner_->logits(first, count);
  return pipeline_->from_head(logits, count * options_.model.vocab_size);
}

std::chrono::nanoseconds ShardedModel::message_cpu_time() const {
  const ModelCollectives* collectives = runner_->collectives();
  return pipeline_->message_cpu_time() +
         (collectives != nullptr ? collectives->cpu_time() : std::chrono::nanoseconds(0));
}

ShardedModel::Waits ShardedModel::waits() const {
  const Stream& compute = rank().compute();
  const ModelCollectives* collectives = runner_->collectives();
  const std::chrono::nanoseconds for_state = compute.waited_for(kWaitsForState);
  Waits waits{.all = compute.waited() - for_state};
  for (const std::string_view axis : sharding::kWaitAxes) {
    const bool is_zero_group =
        axis == sharding::kShardAxis && rank().mesh.degree(sharding::kExpertAxis) > 1;
    if (rank().mesh.degree(axis) == 1 && !is_zero_group) continue;
    std::chrono::nanoseconds waited = compute.waited_for(sharding::wait_kind(axis));
    if (collectives != nullptr) {
      waited += collectives->time_spent(axis);
      waits.all += collectives->time_spent(axis);
    }
    waits.by_axis.emplace_back(axis, waited);
  }
  return waits;
}

}  // namespace sherd::engine
