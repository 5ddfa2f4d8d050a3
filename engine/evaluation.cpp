#include "engine/evaluation.h"

#include <algorithm>
#include <cstring>
namespace sherd::engine {

namespace {

constexpr int kNumbers = 2;  // of each rank: loss and tokens

}  // namespace

std::vector<BufferSpec> evaluation_buffers(const TrainingOptions& options, int world_size) {
  const std::int64_t tokens = options.model.tokens();
  return {{"evaluation.inputs", Category::kData, DType::kI32, tokens, kEvaluation},
          {"evaluation.targets", Category::kData, DType::kI32, tokens, kEvaluation},
          sharding::exchange_buffer("evaluation", kNumbers, world_size)};
}

Evaluation::Evaluation(const TrainingOptions& options, ShardedModel& model,
                       const data::Batcher& batcher)
    : options_(options),
      model_(model),
      batcher_(batcher),
      inputs_(model.rank().memory->acquire(evaluation_buffers(options, 1)[0])),
      targets_(model.rank().memory->acquire(evaluation_buffers(options, 1)[1])),
      exchange_(model.rank(), "evaluation", kNumbers) {}

// A rank that left alone would leave the others waiting in a gather.
StopRequest Evaluation::agreed_stop() {
  const double mine[] = {static_cast<double>(stop_request()), 0.0};
  double most = 0.0;
  for (const std::vector<double>& row : exchange_.all("evaluation", mine)) {
    most = std::max(most, row[0]);
  }
  return static_cast<StopRequest>(static_cast<int>(most));
}

template <class Fill>
Evaluation::Mean Evaluation::mean_loss(std::int64_t num_passes, const Fill& fill,
                                       StopRequest& stop) {
  const std::int64_t seq_length = options_.model.seq_length;
  model_.rank().memory->enter(kEvaluation);
  double mine[] = {0.0, 0.0};
  for (std::int64_t pass_index = 0; pass_index < num_passes; ++pass_index) {
    stop = agreed_stop();
    if (stop != StopRequest::kNone) return {};
    const std::int64_t rows = fill(pass_index);
    // A rank without rows left still takes part in the gathers.
    const model::Pass pass{.inputs = inputs_, .targets = targets_};
    model_.parameters().plan(model_.evaluation_uses());
    model_.forward(pass, kEvaluation);
    model_.evaluate_head(pass);
    mine[0] += model_.loss_sum(0, rows * seq_length);
    mine[1] += static_cast<double>(rows * seq_length);
  }
  double loss_sum = 0.0;
  double tokens = 0.0;
  for (const std::vector<double>& row : exchange_.all("evaluation", mine)) {
    loss_sum += row[0];
    tokens += row[1];
  }
  return {loss_sum / tokens, static_cast<std::int64_t>(tokens)};
}

EvaluationResult Evaluation::run(std::int64_t num_batches) {
  const int rank = model_.rank().rank;
  const int world = model_.rank().world_size;
  const std::int64_t rows = options_.model.sequences;
  const std::int64_t all_windows = batcher_.num_validation_windows();
  const std::int64_t asked = num_batches * rows * world;
  const std::int64_t windows = num_batches == 0 ? all_windows : std::min(asked, all_windows);
  const std::int64_t num_passes = (windows + rows * world - 1) / (rows * world);

  EvaluationResult result;
  const Mean mean = mean_loss(
      num_passes,
      [&](std::int64_t pass) {
        const std::int64_t first = (pass * world + rank) * rows;
        const std::int64_t count = std::clamp<std::int64_t>(windows - first, 0, rows);
        const std::int64_t tokens = count * options_.model.seq_length;
        // Rows that nobody counts are computed all the same, so they hold some token.
        for (const Tensor& all : {inputs_.tensor(), targets_.tensor()}) {
          std::fill_n(all.as<std::int32_t>() + tokens, all.numel - tokens, 0);
        }
        if (count > 0) {
          batcher_.fill_validation(first, count, inputs_.tensor().part(0, tokens),
                                   targets_.tensor().part(0, tokens));
        }
        return count;
      },
      result.stop);
  result.loss = mean.loss;
  result.num_tokens = mean.num_tokens;
  if (windows == all_windows && result.stop == StopRequest::kNone) {
    const auto fill_sample = [&](std::int64_t pass) {
      batcher_.fill_validation_sample(pass * world + rank, rows, inputs_, targets_);
      return rows;
    };
    result.loss_20_batches = mean_loss(20, fill_sample, result.stop).loss;
  }
  return result;
}

}  // namespace sherd::engine
