#include "engine/train/evaluation.h"

#include <algorithm>
#include <numbers>

#include "engine/model/transformer.h"

namespace sherd::engine {

namespace {

constexpr std::int64_t kSampledBatches = 20;
constexpr const char* kAnswerScores = "answer scores";

}  // namespace

std::optional<double> EvaluationResult::Set::bits_per_byte() const {
  if (num_bytes == 0) return std::nullopt;
  return loss * static_cast<double>(num_tokens) / std::numbers::ln2 /
         static_cast<double>(num_bytes);
}

std::vector<BufferSpec> evaluation_buffers(const TrainingOptions& options, int world_size) {
  std::vector<BufferSpec> buffers = batch_buffers("evaluation", options, kEvaluation);
  buffers.push_back(sharding::Agreement<EvaluationShare>::buffer("evaluation", world_size));
  if (options.preference.active()) {
    buffers.push_back(sharding::exchange_buffer(kAnswerScores, AnswerSums::kNumbers, world_size));
  }
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
  if (options.preference.active()) {
    answers_.emplace(model.rank(), kAnswerScores, AnswerSums::kNumbers);
  }
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

StopRequest Evaluation::run_passes(std::int64_t num_passes, std::int64_t seq_length,
                                   const OwnPositions& positions,
                                   const std::function<void(std::int64_t)>& fill,
                                   const std::function<void(std::int64_t)>& take,
                                   const AskedToStop& asked) {
  const std::int64_t tokens = options_.model.sequences * seq_length;
  const sharding::Rank& rank = model_.rank();
  rank.memory->enter(kEvaluation);
  std::int64_t first = 0;  // of the passes that are under way together
  const auto pass_of = [&](int index) {
    // Memory that the device still copies from isn't written.
    if (index > 0 && rank.separate_memory()) rank.compute().synchronize();
    fill(first + index);
    positions.move_to_front(first_tokens(batch_.host(), tokens));
    batch_.to_device(rank.compute());
    // A rank without rows left still takes part in the gathers.
    const TokenBatch batch = positions.of(first_tokens(batch_.device(), tokens));
    return model::Pass{
        .inputs = batch.inputs, .targets = batch.targets, .documents = batch.documents};
  };
  for (; first < num_passes; first += model_.passes_at_once()) {
    const StopRequest stop = agreed_stop(asked);
    if (stop != StopRequest::kNone) return stop;
    if (!model_.computes()) continue;
    const std::int64_t count = std::min<std::int64_t>(num_passes - first, model_.passes_at_once());
    model_.evaluate(static_cast<int>(count), pass_of, [&](int index) { take(first + index); });
  }
  return StopRequest::kNone;
}

Evaluation::Mean Evaluation::mean_loss(std::int64_t num_passes,
                                       const std::function<Filled(std::int64_t)>& fill,
                                       const AskedToStop& asked, StopRequest& stop) {
  EvaluationShare own;
  // Context ranks have the losses of their parts of the same rows.
  const sharding::Rank& rank = model_.rank();
  const bool counts_rows = rank.mesh.coordinate(rank.rank, sharding::kContextAxis) == 0;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(model_.passes_at_once()));
  const auto rows_of = [&](std::int64_t pass) -> std::int64_t& {
    return rows[static_cast<std::size_t>(pass % model_.passes_at_once())];
  };
  const auto count = [&](std::int64_t pass) {
    const Filled filled = fill(pass);
    rows_of(pass) = filled.rows;
    if (!counts_rows) return;
    own.num_tokens += static_cast<double>(filled.targets);
    own.num_bytes += static_cast<double>(filled.bytes);
  };
  const auto add_losses = [&](std::int64_t pass) {
    model_.add_losses(rows_of(pass) * model_.transformer().shape().seq_length, pass == 0);
  };
  stop = run_passes(num_passes, options_.model.seq_length, OwnPositions(options_, rank), count,
                    add_losses, asked);
  if (stop != StopRequest::kNone) return {};
  if (num_passes > 0) own.loss_sum = model_.loss_sum().numbers();
  if (!counts_losses()) own = {};
  ExactSum loss_sum;
  double tokens = 0.0, bytes = 0.0;
  for (const EvaluationShare& share : shares_.all_gather("evaluation", own)) {
    loss_sum.add(share.loss_sum);
    tokens += share.num_tokens;
    bytes += share.num_bytes;
  }
  return {loss_sum.value() / tokens, static_cast<std::int64_t>(tokens),
          static_cast<std::int64_t>(bytes)};
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

std::int64_t Evaluation::first_row(std::int64_t pass, int data_index) const {
  return (pass * model_.rank().data_degree() + data_index) * options_.model.sequences;
}

// Of the micro-batch that was filled last.
std::int64_t Evaluation::bytes_of_targets(int set) {
  const data::TokenText& text = batcher_.validation_source(set).dataset->text();
  bytes_of_.resize(static_cast<std::size_t>(batcher_.num_validation_sets()));
  std::vector<std::int64_t>& known = bytes_of_[static_cast<std::size_t>(set)];
  known.resize(static_cast<std::size_t>(options_.model.vocab_size), -1);
  const Tensor targets = batch_.host().targets;
  std::int64_t bytes = 0;
  for (std::int64_t t = 0; t < targets.numel; ++t) {
    const std::int32_t target = targets.as<std::int32_t>()[t];
    if (target == data::kNoTarget) continue;
    std::int64_t& of_token = known[static_cast<std::size_t>(target)];
    if (of_token < 0) of_token = text.num_bytes(target);
    bytes += of_token;
  }
  return bytes;
}

// This rank's rows of a pass over `windows` windows; returns how many there are.
template <class Fill>
Evaluation::Filled Evaluation::fill_rows(int set, std::int64_t pass, std::int64_t windows,
                                         const Fill& fill) {
  const std::int64_t first = first_row(pass, model_.rank().data_index());
  const std::int64_t count = std::clamp<std::int64_t>(windows - first, 0, options_.model.sequences);
  fill(first, count, batch_.host());
  return {count, batcher_.num_validation_targets(first, count, set), bytes_of_targets(set)};
}

Evaluation::Mean Evaluation::mean_of(int set, std::int64_t windows, const AskedToStop& asked,
                                     StopRequest& stop) {
  if (options_.preference.active()) return mean_of_answers(set, windows, asked, stop);
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
    result.sets.push_back({batcher_.validation_source(set).name, mean.loss, mean.num_tokens,
                           mean.preference, mean.num_bytes});
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
