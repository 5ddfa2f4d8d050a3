#include "engine/inference/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <unordered_map>
#include <vector>

#include "checkpoint/store/committed.h"
#include "engine/data/dataset.h"
#include "engine/inference/trained_model.h"
#include "engine/inference/with_weights.h"
#include "engine/launch/device.h"
#include "engine/launch/stop_signals.h"
#include "engine/saving/resume_check.h"
#include "engine/train/data_sources.h"
#include "engine/train/from_recipe.h"

namespace sherd::engine {
namespace {

// Of all targets of a set.
std::int64_t num_target_bytes(const data::Batcher& batcher, int set) {
  const data::BatchShape& shape = batcher.shape();
  const std::int64_t rows = shape.micro_batch_size, tokens = rows * shape.seq_length;
  std::vector<std::int32_t> memory(static_cast<std::size_t>(5 * tokens + 1));
  std::int64_t used = 0;
  const auto ints = [&](std::int64_t count) {
    const Tensor tensor{memory.data() + used, DType::kI32, count};
    used += count;
    return tensor;
  };
  const data::Batch batch{ints(tokens), ints(tokens), ints(tokens + 1), ints(tokens), ints(tokens)};
  const data::TokenText& text = batcher.dataset().text();
  std::unordered_map<std::int32_t, std::int64_t> bytes_of;
  std::int64_t bytes = 0;
  const std::int64_t windows = batcher.num_validation_windows(set);
  for (std::int64_t first = 0; first < windows; first += rows) {
    batcher.fill_validation(first, std::min(rows, windows - first), batch, set);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int32_t target = batch.targets.as<std::int32_t>()[t];
      if (target == data::kNoTarget) continue;
      const auto [known, is_new] = bytes_of.try_emplace(target, 0);
      if (is_new) known->second = text.num_bytes(target);
      bytes += known->second;
    }
  }
  return bytes;
}

// Where the text is to be the run's own.
bool has_other_data(const TrainedModel& trained, const TrainedModelRequest& request,
                    const data::Batcher& batcher) {
  const bool asks_for_others = std::ranges::any_of(request.sets, [](const std::string& set) {
    return set.starts_with("data.") || set.starts_with("training.");
  });
  if (!trained.checkpoint || asks_for_others || !trained.recipe.data.validation_path.empty() ||
      !trained.recipe.data.validation_sets.empty()) {
    return false;
  }
  // What is held out doesn't depend on the stages' shapes, but their fingerprints do.
  if (has_shapes(trained.recipe)) return false;
  return is_of_other_data(*trained.checkpoint->manifest().global, batcher.fingerprints());
}

}  // namespace

double TextLoss::perplexity() const {
  return std::exp(loss);
}

std::optional<double> TextLoss::bits_per_byte() const {
  if (num_bytes == 0) return std::nullopt;
  return loss * static_cast<double>(num_tokens) / std::numbers::ln2 /
         static_cast<double>(num_bytes);
}

TextLoss evaluate_checkpoint(const TrainedModelRequest& request) {
  const TrainedModel trained = trained_model(request);
  data::BatchSources sources =
      open_sources(trained.recipe, {.only_validate = true, .vocabulary = trained.vocabulary});
  for (data::ValidationSource& source : sources.validation) source.num_batches = 0;
  const data::Batcher batcher(std::move(sources), batch_shape(trained.recipe));
  if (batcher.num_validation_sets() == 0) {
    throw DataError("{}: nothing to validate with; give text with --set data.validation_path=...",
                    trained.recipe.data.path);
  }
  EvaluationResult result;
  const auto machine = request.machine ? request.machine : choose_machine(trained.recipe);
  with_weights(trained, machine, [&](sharding::Rank& rank, ShardedModel& model) {
    Evaluation evaluation(trained.options, model, batcher, trained.batch_size);
    const EvaluationResult of_rank = evaluation.run(0, stop_request);
    if (rank.rank == 0) result = of_rank;
  });
  if (result.stop != StopRequest::kNone) throw_stopped(result.stop, "during the evaluation");
  return {result, num_target_bytes(batcher, batcher.main_validation()),
          has_other_data(trained, request, batcher)};
}

}  // namespace sherd::engine
