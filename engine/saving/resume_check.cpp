#include "engine/saving/resume_check.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "core/error.h"
#include "engine/data/utf8.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/stored.h"
#include "engine/saving/saved_counters.h"

namespace sherd::engine {
namespace {

using nlohmann::json;

constexpr const char* kData = "data (fingerprint)";

OnResume on_resume_of(const std::string& key) {
  const int row = field_index(key);
  // What isn't a key of the recipe, such as the data's fingerprint, says what was trained on.
  if (row < 0) return OnResume::kMustMatch;
  return recipe_fields()[static_cast<std::size_t>(row)].on_resume;
}

/// A value as the first programs wrote it: numbers, and ordinals of enumerations.
std::string text_of(const std::string& key, const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) {
    const auto number = value.get<std::int64_t>();
    return text_of_ordinal(key, number).value_or(fmt::format("{}", number));
  }
  if (value.is_number()) return fmt::format("{}", value.get<double>());
  return value.dump();
}

/// What a checkpoint knows of its run.
class SavedRun {
 public:
  explicit SavedRun(const json& global) {
    if (!global.is_object()) return;
    if (const auto run = global.find("run"); run != global.end() && run->is_object()) run_ = *run;
    if (const auto recipe = global.find("recipe"); recipe != global.end() && recipe->is_string()) {
      recipe_ = printed_values(recipe->get<std::string>());
    }
  }

  std::optional<std::string> value(const std::string& key) const {
    if (const auto found = run_.find(key); found != run_.end()) return text_of(key, *found);
    if (const auto found = recipe_.find(key); found != recipe_.end()) return found->second;
    return default_value(key);
  }
  /// The key came later, and follows from others where nobody sets it.
  bool is_older_than(const std::string& key) const {
    return !recipe_.empty() && field_index(key) >= 0;
  }

 private:
  json run_ = json::object();
  RecipeTexts recipe_;
};

// The first stage's fingerprint, then "FIRST_STEP:FINGERPRINT" for each later one.
std::string text_of(const DataFingerprints& data) {
  std::string text;
  for (const auto& [first_step, hash] : data) {
    if (!text.empty()) text += fmt::format(" {}:", first_step);
    text += fmt::format("{:016x}", hash);
  }
  return text;
}

// Without the stages that begin at `steps_done` or later: they may still change.
std::string begun_stages(const std::string& text, std::int64_t steps_done) {
  std::string begun;
  std::istringstream stages(text);
  for (std::string stage; stages >> stage;) {
    const std::size_t colon = stage.find(':');
    std::int64_t first = 0;
    if (colon != std::string::npos) std::from_chars(stage.data(), stage.data() + colon, first);
    if (first >= steps_done && first > 0) break;
    begun += (begun.empty() ? "" : " ") + stage;
  }
  return begun;
}

// Where stages differ after the first one: "; the stages differ from step 11 on, ...".
std::string where_stages_differ(const std::string& saved, const std::string& now) {
  const auto stages_of = [](const std::string& text) {
    std::istringstream words(text);
    return std::vector<std::string>(std::istream_iterator<std::string>(words), {});
  };
  const std::vector<std::string> before = stages_of(saved), after = stages_of(now);
  const auto [of_saved, of_now] = std::ranges::mismatch(before, after);
  if (of_saved == before.begin()) return "";
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const auto& [stage, end] : {std::pair(of_saved, before.end()), {of_now, after.end()}}) {
    std::int64_t step = 0;
    if (stage == end || stage->find(':') == std::string::npos) continue;
    std::from_chars(stage->data(), stage->data() + stage->find(':'), step);
    first = std::min(first, step);
  }
  return fmt::format(
      "; data.stages differ from step {} on, and stages that have begun can't change", first + 1);
}

}  // namespace

std::shared_ptr<const json> run_settings(const Recipe& recipe, const DataFingerprints& data) {
  json settings = compared_values(recipe);
  settings[kData] = text_of(data);
  return std::make_shared<const json>(std::move(settings));
}

bool is_of_other_data(const json& global, const DataFingerprints& data) {
  const std::optional<std::string> saved = SavedRun(global).value(kData);
  return saved && *saved != text_of(data);
}

bool ResumeCheck::has_changed(std::string_view key) const {
  return std::any_of(changed.begin(), changed.end(),
                     [&](const Difference& difference) { return difference.key == key; });
}

ResumeCheck compare_runs(const json& global, const json& settings, std::int64_t steps_done) {
  const SavedRun saved(global);
  ResumeCheck check;
  for (const auto& [key, value] : settings.items()) {
    std::string now = text_of(key, value);
    std::optional<std::string> before = saved.value(key);
    if (key == kData) {
      now = begun_stages(now, steps_done);
      if (before) before = begun_stages(*before, steps_done);
    }
    if (before == now || (!before && saved.is_older_than(key))) continue;
    auto& differences = on_resume_of(key) == OnResume::kMustMatch ? check.refused : check.changed;
    differences.push_back({key, before.value_or("missing"), now});
  }
  return check;
}

ResumeCheck compare_models(const json& global, const json& settings) {
  ResumeCheck all = compare_runs(global, settings), models;
  for (auto* differences : {&all.refused, &all.changed}) {
    for (ResumeCheck::Difference& difference : *differences) {
      // How many positions there are is in the shapes, and dropout is the new run's own.
      if (!difference.key.starts_with("model.") || difference.key == "model.dropout" ||
          difference.key == "model.max_seq_length") {
        continue;
      }
      models.changed.push_back(std::move(difference));
    }
  }
  return models;
}

std::string other_characters(const json& global, std::span<const char32_t> characters) {
  const auto saved = global.find("vocabulary");
  if (saved == global.end() || !saved->is_array()) return {};
  const auto text_of_character = [](char32_t character) {
    std::string text;
    data::append_utf8(text, character);
    return shown(text);
  };
  for (std::size_t id = 0; id < std::min(saved->size(), characters.size()); ++id) {
    const json& character = (*saved)[id];
    if (!character.is_number_unsigned() || character >= data::kNumCodePoints) return {};
    const auto before = character.get<char32_t>();
    if (before == characters[id]) continue;
    return fmt::format("id {} is \"{}\" in the checkpoint and \"{}\" in the recipe's texts", id,
                       text_of_character(before), text_of_character(characters[id]));
  }
  return {};
}

void require_same_run(const ResumeCheck& check, const std::string& checkpoint) {
  if (check.refused.empty()) return;
  std::string differences;
  for (const auto& [key, saved, now] : check.refused) {
    differences += fmt::format("{}{} is {} in the checkpoint and {} in the recipe",
                               differences.empty() ? "" : "; ", key, shown(saved), now);
    if (key != kData) continue;
    differences +=
        " (texts were added, removed or changed, or are tokenized or mixed differently, or other "
        "texts are held out for validation" +
        where_stages_differ(saved, now) + ")";
  }
  throw UsageError(
      "{}: {}. Resume with the recipe of the checkpoint, or start again in another run.output_dir "
      "(checkpoint.init_from takes its weights).",
      checkpoint, differences);
}

void require_same_mean(const ResumeCheck& check, std::int64_t start_step, std::int64_t num_updates,
                       const std::string& checkpoint) {
  constexpr std::string_view kStart = "averages.start_step";
  const auto found = std::ranges::find(check.changed, kStart, &ResumeCheck::Difference::key);
  if (found == check.changed.end() || start_step >= num_updates) return;
  throw UsageError(
      "{}: {} is {} in the checkpoint and {} in the recipe, but {} updates are done. A mean can "
      "only begin later than that, or stay as it is.",
      checkpoint, kStart, shown(found->saved), start_step, num_updates);
}

std::string changes_text(const ResumeCheck& check) {
  if (check.changed.empty()) return {};
  std::string text = "unlike the checkpoint's run:";
  for (const auto& [key, saved, now] : check.changed) {
    text += fmt::format("\n  {}: {} (checkpoint: {})", key, now, shown(saved));
  }
  return text;
}

optim::LossScaler::State resumed_scaler(const optim::LossScaler::State& saved,
                                        const optim::LossScaling& options,
                                        const ResumeCheck& check) {
  using Mode = optim::LossScaling::Mode;
  if (options.mode != Mode::kDynamic || check.has_changed("loss_scaling.mode")) {
    optim::LossScaler::State fresh = optim::LossScaler(options).state();
    fresh.skips_in_a_row = saved.skips_in_a_row;
    fresh.total_skips = saved.total_skips;
    return fresh;
  }
  optim::LossScaler::State state = saved;
  state.scale = std::max(state.scale, options.min_scale);
  state.credit = std::min(state.credit, options.hysteresis);
  return state;
}

}  // namespace sherd::engine
