#include "engine/run/epochs.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace sherd::engine {
namespace {

// The step at which the run leaves segment `index`.
std::int64_t end_of(const RunData& data, std::size_t index, std::int64_t max_steps) {
  const bool is_last = index + 1 == data.segments.size();
  return is_last ? max_steps : std::min(data.segments[index].end_step, max_steps);
}

std::int64_t tokens_in(const RunData& data, std::size_t index, int source, std::int64_t max_steps) {
  const data::Batcher& batcher = *data.batches[index];
  return batcher.tokens_of(source, end_of(data, index, max_steps)) -
         batcher.tokens_of(source, batcher.first_step());
}

double epochs_of(const RunData& data, int source, std::int64_t max_steps) {
  double epochs = 0.0;
  for (std::size_t i = 0; i < data.batches.size(); ++i) {
    const data::Batcher& batcher = *data.batches[i];
    epochs += static_cast<double>(tokens_in(data, i, source, max_steps)) /
              static_cast<double>(batcher.num_windows(source) * batcher.shape().seq_length);
  }
  return epochs;
}

// "steps 1 to 700: in 1024 sequences, 717 of english, 307 of code"
std::string stage_line(const data::Batcher& batcher, std::size_t index, std::int64_t end_step) {
  const auto& stages = batcher.stages();
  const bool is_last = index + 1 == stages.size();
  const std::int64_t end = is_last ? end_step : std::min(stages[index + 1].first_step, end_step);
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

std::string source_line(const RunData& data, int source, std::int64_t max_steps) {
  const data::Batcher& last = *data.batches.back();
  const std::string& name = last.source(source).name;
  const std::int64_t tokens = last.tokens_of(source, max_steps);
  const double epochs = epochs_of(data, source, max_steps);
  if (data.batches.size() > 1) {
    return fmt::format("{}: {} tokens in {} steps, {:.3g} epochs", name, tokens, max_steps, epochs);
  }
  return fmt::format("{}: {} sequences in {} steps, {} tokens, {:.3g} epochs of {}", name,
                     last.num_used(source, max_steps), max_steps, tokens, epochs,
                     last.num_windows(source));
}

// Of a segment whose texts are cut again: "up to 512 of 1024 tokens of english were used before".
std::string repeats_line(const RunData& data, std::size_t index, int source,
                         std::int64_t max_steps) {
  const data::Batcher& batcher = *data.batches[index];
  const std::int64_t tokens = tokens_in(data, index, source, max_steps);
  const std::int64_t before = batcher.tokens_of(source, batcher.first_step());
  const std::int64_t repeated = std::min(tokens, before);
  if (repeated == 0) return "";
  return fmt::format("up to {} of its {} tokens of {} were used before, cut differently", repeated,
                     tokens, batcher.source(source).name);
}

bool is_cut_anew(const RunData& data, std::size_t index) {
  return index > 0 && data.batches[index]->begin().cut != data.batches[index - 1]->begin().cut;
}

// "attention: steps wait for 1.02 times the mean work of 4 ranks, in the mean of 16 steps".
std::string balance_line(const data::Batcher& batcher, std::int64_t end) {
  constexpr std::int64_t kMostSteps = 16;
  bool has_documents = false;
  for (int i = 0; i < batcher.num_sources(); ++i) {
    has_documents |= batcher.training(i).document_rows() != nullptr;
  }
  const std::int64_t steps = std::min(kMostSteps, end - batcher.first_step());
  if (!has_documents || batcher.shape().world == 1 || steps <= 0) return "";
  constexpr double kEven = 1.05;
  const double imbalance = batcher.imbalance(batcher.first_step(), steps);
  return fmt::format(
      "attention: steps wait for {:.3f} times the mean work of {} ranks, in the mean of {} "
      "step{}{}",
      imbalance, batcher.shape().world, steps, steps == 1 ? "" : "s",
      imbalance <= kEven || !batcher.balances()
          ? ""
          : "; more sequences in a micro-batch could be divided more evenly");
}

std::string counted(std::int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

std::string data_lines(const Recipe& recipe, const RunData& data) {
  std::string text;
  const auto add = [&text](const std::string& line) {
    if (!line.empty()) text += (text.empty() ? "" : "\n") + line;
  };
  const data::Batcher& first = *data.batches[0];
  const bool is_mixed = first.num_sources() > 1;
  for (int i = 0; i < first.num_sources(); ++i) {
    const data::Source& source = first.source(i);
    add((is_mixed ? source.name + ": " : "") + source.dataset->summary());
  }
  const auto is_trained_on = [&](const data::Dataset* dataset) {
    for (int i = 0; i < first.num_sources(); ++i) {
      if (first.source(i).dataset.get() == dataset) return true;
    }
    return false;
  };
  for (int set = 0; set < first.num_validation_sets(); ++set) {
    const data::ValidationSource& source = first.validation_source(set);
    if (is_trained_on(source.dataset.get())) continue;
    add(fmt::format("validation {}: {}", source.name, source.dataset->summary()));
  }
  const std::int64_t max_steps = recipe.training.max_steps;
  for (std::size_t i = 0; i < data.batches.size(); ++i) {
    const data::Batcher& batcher = *data.batches[i];
    if (data.batches.size() > 1) add(data.segments[i].text(recipe));
    add(batcher.summary());
    add(balance_line(batcher, end_of(data, i, max_steps)));
    for (std::size_t stage = 0; is_mixed && stage < batcher.stages().size(); ++stage) {
      if (batcher.stages()[stage].first_step < max_steps) {
        add(stage_line(batcher, stage, end_of(data, i, max_steps)));
      } else if (data.batches.size() == 1) {
        add(fmt::format("data.stages[{}] begins with step {}, after the run's end", stage,
                        batcher.stages()[stage].first_step + 1));
      }
    }
    for (int source = 0; is_cut_anew(data, i) && source < batcher.num_sources(); ++source) {
      add(repeats_line(data, i, source, max_steps));
    }
  }
  for (int i = 0; is_mixed && i < first.num_sources(); ++i) add(source_line(data, i, max_steps));
  return text;
}

void require_few_epochs(const RunData& data, std::int64_t max_steps) {
  for (int i = 0; i < data.batches[0]->num_sources(); ++i) {
    const data::Source& source = data.batches[0]->source(i);
    const double epochs = epochs_of(data, i, max_steps);
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
