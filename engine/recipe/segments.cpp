#include "engine/recipe/segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/recipe/resolution.h"

namespace sherd::engine {
namespace {

struct Shape {
  std::int64_t seq_length = 0, global_batch_size = 0, micro_batch_size = 0;
  bool operator==(const Shape&) const = default;
};

std::int64_t or_else(std::int64_t value, std::int64_t of_run) {
  return value > 0 ? value : of_run;
}

Shape shape_of_run(const Recipe& recipe) {
  const Recipe::Training& training = recipe.training;
  return {training.seq_length, training.global_batch_size, training.micro_batch_size};
}

Shape shape_of(const Recipe& recipe, const DataStage& stage) {
  const Shape run = shape_of_run(recipe);
  return {or_else(stage.seq_length, run.seq_length),
          or_else(stage.global_batch_size, run.global_batch_size),
          or_else(stage.micro_batch_size, run.micro_batch_size)};
}

double rate_factor(const Recipe& recipe, std::int64_t batch_size) {
  const double ratio =
      static_cast<double>(batch_size) / static_cast<double>(recipe.training.global_batch_size);
  switch (recipe.lr_scheduler.batch_size_scaling) {
    case optim::BatchSizeScaling::kNone:
      return 1.0;
    case optim::BatchSizeScaling::kLinear:
      return ratio;
    case optim::BatchSizeScaling::kSquareRoot:
      return std::sqrt(ratio);
  }
  return 1.0;
}

// Without what only the run as a whole has: lengths in tokens, and shapes of the stages.
std::vector<DataStage> plain_stages(const Recipe& recipe, const std::vector<StageSpan>& spans,
                                    std::size_t first, std::size_t end) {
  std::vector<DataStage> stages;
  for (std::size_t i = first; i < end; ++i) {
    DataStage& stage = stages.emplace_back();
    stage.steps = i + 1 == end ? 0 : spans[i].end_step - spans[i].first_step;
    stage.weights = recipe.data.stages[i].weights;
  }
  return stages;
}

ResolvedRecipe with_shape(const ResolvedRecipe& run, const Shape& shape,
                          std::vector<DataStage> stages, const std::string& label) {
  const Recipe& of_run = run.values;
  const std::int64_t at_a_time = shape.micro_batch_size * of_run.data_degree();
  if (shape.global_batch_size % at_a_time != 0) {
    throw RecipeErrors({fmt::format(
        "{}: a global_batch_size of {} isn't a multiple of micro_batch_size {} x {} ranks = {}.",
        label, shape.global_batch_size, shape.micro_batch_size, of_run.data_degree(), at_a_time)});
  }
  std::vector<std::string_view> keys = {
      "training.seq_length", "training.global_batch_size", "training.micro_batch_size",
      "training.gradient_accumulation_steps", "model.max_seq_length"};
  if (of_run.lr_scheduler.type == optim::ScheduleType::kWsd) {
    keys.push_back("lr_scheduler.wsd_decay_steps");
  }
  ResolvedRecipe changed = with_changes_or_errors(run, label, keys, [&](Recipe& recipe) {
    Recipe::Training& training = recipe.training;
    training.seq_length = shape.seq_length;
    training.global_batch_size = shape.global_batch_size;
    training.micro_batch_size = shape.micro_batch_size;
    training.gradient_accumulation_steps = shape.global_batch_size / at_a_time;
    recipe.data.stages = std::move(stages);
  });
  changed.values.lr_scheduler = of_run.lr_scheduler;
  const double factor = rate_factor(of_run, shape.global_batch_size);
  changed.values.optimizer.lr *= factor;
  changed.values.optimizer.adamw_lr *= factor;
  return changed;
}

}  // namespace

std::vector<StageSpan> spans_of(const Recipe& recipe) {
  const std::int64_t max_steps = recipe.training.max_steps;
  std::vector<StageSpan> spans;
  std::int64_t first = 0;
  for (const DataStage& stage : recipe.data.stages) {
    const Shape shape = shape_of(recipe, stage);
    const std::int64_t tokens = shape.global_batch_size * shape.seq_length;
    std::int64_t steps = stage.steps;
    if (steps == 0 && stage.tokens > 0 && tokens > 0) steps = (stage.tokens - 1) / tokens + 1;
    spans.push_back({first, steps > 0 ? first + steps : max_steps, tokens});
    first += steps;
  }
  if (spans.empty()) spans.push_back({0, max_steps, recipe.tokens_per_step()});
  return spans;
}

std::int64_t last_steps_with(const Recipe& recipe, std::int64_t tokens, std::int64_t end_step) {
  const std::vector<StageSpan> spans = spans_of(recipe);
  const std::int64_t last = std::min(recipe.training.max_steps, end_step);
  std::int64_t steps = 0;
  for (auto span = spans.rbegin(); span != spans.rend() && tokens > 0; ++span) {
    const std::int64_t end = std::min(span->end_step, last);
    if (end <= span->first_step || span->tokens_per_step == 0) continue;
    const std::int64_t needed = (tokens - 1) / span->tokens_per_step + 1;
    // The first stage also stands for steps before the run, so that a length beyond it is seen.
    const bool is_first = span + 1 == spans.rend();
    const std::int64_t used = is_first ? needed : std::min(needed, end - span->first_step);
    steps += used;
    tokens -= used * span->tokens_per_step;
  }
  return steps;
}

std::int64_t longest_sequence(const Recipe& recipe) {
  std::int64_t longest = recipe.training.seq_length;
  for (const DataStage& stage : recipe.data.stages) longest = std::max(longest, stage.seq_length);
  return longest;
}

bool has_shapes(const Recipe& recipe) {
  return std::ranges::any_of(recipe.data.stages, [](const DataStage& stage) {
    return stage.seq_length > 0 || stage.global_batch_size > 0 || stage.micro_batch_size > 0;
  });
}

void require_one_shape(const Recipe& recipe, std::string_view who) {
  if (!has_shapes(recipe)) return;
  throw UsageError(
      "{} doesn't know stages with sequence lengths or batch sizes of their own (data.stages). "
      "Make "
      "a recipe of the longest stage, and give its layout to the whole run.",
      who);
}

std::string Segment::text(const Recipe& run) const {
  const Recipe::Training& training = recipe.values.training;
  std::string text = fmt::format("steps {} to {}: {} sequences of {} tokens", first_step + 1,
                                 end_step, training.global_batch_size, training.seq_length);
  const double factor = rate_factor(run, training.global_batch_size);
  if (factor != 1.0) text += fmt::format(", lr x {:.3g}", factor);
  return text;
}

std::vector<Segment> segments_of(const ResolvedRecipe& recipe) {
  const Recipe& run = recipe.values;
  const std::vector<DataStage>& stages = run.data.stages;
  const std::int64_t max_steps = run.training.max_steps;
  const bool is_plain = std::ranges::all_of(
      stages, [&](const DataStage& stage) { return shape_of(run, stage) == shape_of_run(run); });
  if (is_plain) return {{recipe, 0, max_steps}};
  const std::vector<StageSpan> spans = spans_of(run);
  std::vector<Segment> segments;
  std::vector<std::string> problems;
  for (std::size_t first = 0, end = 0; first < stages.size(); first = end) {
    const Shape shape = shape_of(run, stages[first]);
    while (end < stages.size() && shape_of(run, stages[end]) == shape) ++end;
    try {
      segments.push_back({with_shape(recipe, shape, plain_stages(run, spans, first, end),
                                     fmt::format("data.stages[{}]", first)),
                          spans[first].first_step, spans[end - 1].end_step, first});
    } catch (const RecipeErrors& errors) {
      problems.insert(problems.end(), errors.lines().begin(), errors.lines().end());
      continue;
    }
    if (segments.size() < 2) continue;
    const Segment& before = segments[segments.size() - 2];
    segments.back().cuts_anew = before.recipe.values.training.seq_length != shape.seq_length;
  }
  if (!problems.empty()) throw RecipeErrors(std::move(problems));
  const auto begins_late = [&](const Segment& segment) {
    return max_steps > 0 && segment.first_step > 0 && segment.first_step >= max_steps;
  };
  std::erase_if(segments, begins_late);
  segments.back().end_step = max_steps;
  return segments;
}

}  // namespace sherd::engine
