#include "engine/train/evaluation.h"

#include <algorithm>

#include "engine/model/transformer.h"

namespace sherd::engine {

namespace {

constexpr std::int64_t kSampledBatches = 20;

}  // namespace

std::vector<BufferSpec> evaluation_buffers(const TrainingOptions& options, int world_size) {
  std::vector<BufferSpec> buffers = batch_buffers("evaluation", options, kEvaluation);
  buffers.push_back(sharding::Agreement<EvaluationShare>::buffer("evaluation", world_size));
  return buffers;
}

Evaluation::Evaluation(const TrainingOptions& options, ShardedModel& model,
                       const data::Batcher& batcher, std::int64_t batch_size)
    : options_(options),
      model_(model),
      batcher_(batcher),
      batch_size_(batch_size),
      batch_(model.rank(), batch_buffers("evaluation", options, kEvaluation)),
      shares_(model.rank(), "evaluation") {
  SHERD_CHECK(batch_size > 0, "batches of {} sequences", batch_size);
}

// A rank that left alone would leave the others waiting in a gather.
StopRequest Evaluation::agreed_stop(const AskedToStop& asked) {
  const StopRequest own = asked ? asked() : StopRequest::kNone;
  double most = 0.0;
  for (const EvaluationShare& share :
       shares_.all_gather("evaluation", {.stop_request = static_cast<double>(own)})) {
    most = std::max(most, share.stop_request);
  }
  return static_cast<StopRequest>(static_cast<int>(most));
}

template <class Fill>
Evaluation::Mean Evaluation::mean_loss(std::int64_t num_passes, const Fill& fill,
                                       const AskedToStop& asked, StopRequest& stop) {
  const OwnPositions positions(options_, model_.rank());
  const std::int64_t seq_length = model_.transformer().shape().seq_length;
  model_.rank().memory->enter(kEvaluation);
  EvaluationShare own;
  // Context ranks have the losses of their parts of the same rows.
  const sharding::Rank& rank = model_.rank();
  const bool counts_rows = rank.mesh.coordinate(rank.rank, sharding::kContextAxis) == 0;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(model_.passes_at_once()));
  std::int64_t first = 0;  // of the passes that are under way together
  const auto pass_of = [&](int index) {
    // Memory that the device still copies from isn't written.
    if (index > 0 && rank.separate_memory()) rank.compute().synchronize();
    const Filled filled = fill(first + index);
    rows[static_cast<std::size_t>(index)] = filled.rows;
    if (counts_rows) own.num_tokens += static_cast<double>(filled.targets);
    positions.move_to_front(batch_.host());
    batch_.to_device(rank.compute());
    // A rank without rows left still takes part in the gathers.
    const TokenBatch batch = positions.of(batch_.device());
    return model::Pass{
        .inputs = batch.inputs, .targets = batch.targets, .documents = batch.documents};
  };
  const auto add_losses = [&](int index) {
    model_.add_losses(rows[static_cast<std::size_t>(index)] * seq_length, first + index == 0);
  };
  for (; first < num_passes; first += model_.passes_at_once()) {
    stop = agreed_stop(asked);
    if (stop != StopRequest::kNone) return {};
    const std::int64_t count = std::min<std::int64_t>(num_passes - first, model_.passes_at_once());
    model_.evaluate(static_cast<int>(count), pass_of, add_losses);
  }
  if (num_passes > 0) own.loss_sum = model_.loss_sum().numbers();
  if (!model_.rank().contributes_tokens() || !model_.has_head()) own = {};
  ExactSum loss_sum;
  double tokens = 0.0;
  for (const EvaluationShare& share : shares_.all_gather("evaluation", own)) {
    loss_sum.add(share.loss_sum);
    tokens += share.num_tokens;
  }
  return {loss_sum.value() / tokens, static_cast<std::int64_t>(tokens)};
}

// What an evaluation of so many batches looks at; 0: everything.
std::int64_t Evaluation::num_windows(int set, std::int64_t num_batches) const {
  const std::int64_t all = batcher_.num_validation_windows(set);
  const std::int64_t own = batcher_.validation_source(set).num_batches;
  if (own >= 0) num_batches = own;
  if (num_batches == 0) return all;
  std::int64_t windows = 0;
  const bool overflows = __builtin_mul_overflow(num_batches, batch_size_, &windows);
  return overflows ? all : std::min(windows, all);
}

std::int64_t Evaluation::num_sampled() const {
  return kSampledBatches * batch_size_;
}

bool Evaluation::samples_too(int set, std::int64_t windows) const {
  return set == batcher_.main_validation() && windows == batcher_.num_validation_windows(set) &&
         !batcher_.validation_source(set).dataset->separate_documents();
}

std::int64_t Evaluation::passes_over(std::int64_t windows) const {
  const std::int64_t at_once = options_.model.sequences * model_.rank().data_degree();
  return (windows + at_once - 1) / at_once;
}

std::int64_t Evaluation::num_passes(std::int64_t num_batches) const {
  std::int64_t passes = 0;
  for (int set = 0; set < batcher_.num_validation_sets(); ++set) {
    const std::int64_t windows = num_windows(set, num_batches);
    passes += passes_over(windows) + (samples_too(set, windows) ? passes_over(num_sampled()) : 0);
  }
  return passes;
}

std::int64_t Evaluation::num_main_passes(std::int64_t num_batches) const {
  if (batcher_.num_validation_sets() == 0) return 0;
  return passes_over(num_windows(batcher_.main_validation(), num_batches));
}

// This rank's rows of a pass over `windows` windows; returns how many there are.
template <class Fill>
Evaluation::Filled Evaluation::fill_rows(int set, std::int64_t pass, std::int64_t windows,
                                         const Fill& fill) {
  const std::int64_t rows = options_.model.sequences;
  const std::int64_t first =
      (pass * model_.rank().data_degree() + model_.rank().data_index()) * rows;
  const std::int64_t count = std::clamp<std::int64_t>(windows - first, 0, rows);
  fill(first, count, batch_.host());
  return {count, batcher_.num_validation_targets(first, count, set)};
}

Evaluation::Mean Evaluation::mean_of(int set, std::int64_t windows, const AskedToStop& asked,
                                     StopRequest& stop) {
  const auto in_order = [&](std::int64_t pass) {
    return fill_rows(set, pass, windows,
                     [&](std::int64_t first, std::int64_t count, const data::Batch& batch) {
                       batcher_.fill_validation(first, count, batch, set);
                     });
  };
  return mean_loss(passes_over(windows), in_order, asked, stop);
}

EvaluationResult Evaluation::run_main(std::int64_t num_batches, const AskedToStop& asked) {
  EvaluationResult result;
  const int set = batcher_.main_validation();
  const Mean mean = mean_of(set, num_windows(set, num_batches), asked, result.stop);
  result.loss = mean.loss;
  result.num_tokens = mean.num_tokens;
  return result;
}

EvaluationResult Evaluation::run(std::int64_t num_batches, const AskedToStop& asked) {
  EvaluationResult result;
  for (int set = 0; set < batcher_.num_validation_sets(); ++set) {
    const std::int64_t windows = num_windows(set, num_batches);
    const Mean mean = mean_of(set, windows, asked, result.stop);
    if (result.stop != StopRequest::kNone) return result;
    result.sets.push_back({batcher_.validation_source(set).name, mean.loss, mean.num_tokens});
    if (set != batcher_.main_validation()) continue;
    result.loss = mean.loss;
    result.num_tokens = mean.num_tokens;
    if (!samples_too(set, windows)) continue;
    const auto sampled = [&](std::int64_t pass) {
      return fill_rows(set, pass, num_sampled(),
                       [&](std::int64_t first, std::int64_t count, const data::Batch& batch) {
                         batcher_.fill_validation_sample(batch_size_, first, count, batch, set);
                       });
    };
    result.loss_20_batches =
        mean_loss(passes_over(num_sampled()), sampled, asked, result.stop).loss;
    if (result.stop != StopRequest::kNone) return result;
  }
  return result;
}

}  // namespace sherd::engine
