#include "engine/evaluation.h"

#include <algorithm>
#include <cstring>

#include "engine/interrupt.h"

namespace sherd::engine {

Evaluation::Evaluation(const TrainingOptions& options, ShardedModel& model,
                       const data::Batcher& batcher)
    : options_(options),
      model_(model),
      batcher_(batcher),
      inputs_(model.rank().memory->acquire({"evaluation.inputs", Category::kData, DType::kI32,
                                            options.model.tokens(), kEvaluation})),
      targets_(model.rank().memory->acquire({"evaluation.targets", Category::kData, DType::kI32,
                                             options.model.tokens(), kEvaluation})),
      exchange_(model.rank(), 2) {}

template <class Fill>
double Evaluation::mean_loss(std::int64_t num_passes, const Fill& fill, std::int64_t* num_tokens) {
  const std::int64_t seq_length = options_.model.seq_length;
  double mine[] = {0.0, 0.0};
  for (std::int64_t pass_index = 0; pass_index < num_passes; ++pass_index) {
    if (interrupted()) throw Interrupted("Ctrl-C during an evaluation; metrics so far are on disk");
    const std::int64_t rows = fill(pass_index);
    // A rank without rows left still takes part in the gathers.
    const model::Pass pass{.inputs = inputs(), .targets = targets()};
    model_.parameters().plan(model_.evaluation_uses());
    model_.forward(pass);
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
  if (num_tokens) *num_tokens = static_cast<std::int64_t>(tokens);
  return loss_sum / tokens;
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
  result.loss = mean_loss(
      num_passes,
      [&](std::int64_t pass) {
        const std::int64_t first = (pass * world + rank) * rows;
        const std::int64_t count = std::clamp<std::int64_t>(windows - first, 0, rows);
        const std::int64_t tokens = count * options_.model.seq_length;
        if (count > 0) {
          batcher_.fill_validation(first, count, inputs().part(0, tokens),
                                   targets().part(0, tokens));
        }
        return count;
      },
      &result.num_tokens);
  if (windows == all_windows) {
    result.loss_20_batches = mean_loss(
        20,
        [&](std::int64_t pass) {
          batcher_.fill_validation_sample(pass * world + rank, rows, inputs(), targets());
          return rows;
        },
        nullptr);
  }
  return result;
}

}  // namespace sherd::engine
