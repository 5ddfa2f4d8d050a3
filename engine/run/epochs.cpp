#include "engine/run/epochs.h"

#include <fmt/format.h>

namespace sherd::engine {
namespace {

std::string counted(std::int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

std::string epochs_line(const Recipe& recipe, const data::Batcher& batcher) {
  const std::int64_t rows = batcher.shape().global_batch_size();
  const std::string sequences = counted(batcher.num_windows(), "sequence");
  if (recipe.training.num_epochs == 0) {
    const std::int64_t steps = recipe.training.max_steps;
    return fmt::format("{} of {}: {:.3g} epochs of {}", counted(steps, "step"), rows,
                       static_cast<double>(steps) * static_cast<double>(rows) /
                           static_cast<double>(batcher.num_windows()),
                       sequences);
  }
  const std::int64_t steps = batcher.num_steps();
  const std::int64_t last = batcher.num_samples(steps) - batcher.num_samples(steps - 1);
  return fmt::format("{} of {}: {} of {}{}", counted(recipe.training.num_epochs, "epoch"),
                     sequences, counted(steps, "step"), rows,
                     last == rows ? "" : fmt::format(", the last one of {}", last));
}

}  // namespace sherd::engine
