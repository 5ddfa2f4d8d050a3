#include "engine/run/epochs.h"

#include <fmt/format.h>

#include "core/error.h"

namespace sherd::engine {
namespace {

double epochs_of(const data::Batcher& batcher, int source, std::int64_t max_steps) {
  return static_cast<double>(batcher.num_used(source, max_steps)) /
         static_cast<double>(batcher.num_windows(source));
}

// "steps 1 to 700: in 1024 sequences, 717 of english, 307 of code".
std::string stage_line(const data::Batcher& batcher, std::size_t index, std::int64_t max_steps) {
  const auto& stages = batcher.stages();
  const bool is_last = index + 1 == stages.size();
  const std::int64_t end = is_last ? max_steps : stages[index + 1].first_step;
  std::string shares;
  const std::vector<std::int64_t>& counts = stages[index].mixture.counts();
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    shares += fmt::format("{}{} of {}", shares.empty() ? "" : ", ", counts[i],
                          batcher.source(static_cast<int>(i)).name);
  }
  return fmt::format("steps {} to {}: in {} sequences, {}", stages[index].first_step + 1, end,
                     data::Mixture::kBlock, shares);
}

std::string source_line(const data::Batcher& batcher, int source, std::int64_t max_steps) {
  const std::int64_t used = batcher.num_used(source, max_steps);
  return fmt::format("{}: {} sequences in {} steps, {} tokens, {:.3g} epochs of {}",
                     batcher.source(source).name, used, max_steps,
                     used * batcher.shape().seq_length, epochs_of(batcher, source, max_steps),
                     batcher.num_windows(source));
}

std::string counted(std::int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

std::string data_lines(const Recipe& recipe, const data::Batcher& batcher) {
  std::string text;
  const auto add = [&text](const std::string& line) {
    if (!line.empty()) text += (text.empty() ? "" : "\n") + line;
  };
  const bool is_mixed = batcher.num_sources() > 1;
  for (int i = 0; i < batcher.num_sources(); ++i) {
    const data::Source& source = batcher.source(i);
    add((is_mixed ? source.name + ": " : "") + source.dataset->summary());
  }
  const auto is_trained_on = [&](const data::Dataset* dataset) {
    for (int i = 0; i < batcher.num_sources(); ++i) {
      if (batcher.source(i).dataset.get() == dataset) return true;
    }
    return false;
  };
  for (int set = 0; set < batcher.num_validation_sets(); ++set) {
    const data::ValidationSource& source = batcher.validation_source(set);
    if (is_trained_on(source.dataset.get())) continue;
    add(fmt::format("validation {}: {}", source.name, source.dataset->summary()));
  }
  add(batcher.summary());
  if (!is_mixed) return text;
  const std::int64_t max_steps = recipe.training.max_steps;
  for (std::size_t i = 0; i < batcher.stages().size(); ++i) {
    if (batcher.stages()[i].first_step < max_steps) add(stage_line(batcher, i, max_steps));
  }
  for (int i = 0; i < batcher.num_sources(); ++i) add(source_line(batcher, i, max_steps));
  return text;
}

void require_few_epochs(const data::Batcher& batcher, std::int64_t max_steps) {
  for (int i = 0; i < batcher.num_sources(); ++i) {
    const data::Source& source = batcher.source(i);
    const double epochs = epochs_of(batcher, i, max_steps);
    if (source.max_epochs == 0.0 || epochs <= source.max_epochs) continue;
    throw DataError(
        "data.sources: \"{}\" would be repeated {:.3g} times in {} steps, and its max_epochs is "
        "{:g}. Lower its weight, or give it more text.",
        source.name, epochs, max_steps, source.max_epochs);
  }
}

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
