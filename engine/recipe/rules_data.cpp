// Rules about the training and validation data: one text, or several with weights and stages.
#include <algorithm>
#include <numeric>
#include <set>

#include "engine/recipe/fields.h"
#include "engine/recipe/resolution.h"
#include "engine/recipe/segments.h"
#include "engine/recipe/suggest.h"
#include "engine/recipe/uses.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kSources = "data.sources", kStages = "data.stages",
                           kSets = "data.validation_sets", kTasks = "training.tasks";

// Formats whose tokens are a tokenizer's can be mixed; bytes and characters stand alone.
bool can_be_mixed(std::string_view one, std::string_view other) {
  constexpr std::array<std::string_view, 3> kTokens = {"text", "bin", "chat"};
  const auto has = [&](std::string_view format) {
    return std::ranges::find(kTokens, format) != kTokens.end();
  };
  return one == other || (has(one) && has(other));
}

// The format, documents and name of an item of `key`; the text is the item's name in messages.
template <class Item>
void check_item(Resolution& recipe, std::string_view key, const Item& item,
                const std::string& label) {
  const Recipe& values = recipe.values();
  const std::vector<std::string_view>& formats = recipe_fields()[row_of("data.format")].choices;
  const std::string_view own = formats[static_cast<std::size_t>(values.data.format)];
  const std::string_view format = item.format.empty() ? own : std::string_view(item.format);
  if (item.path.empty()) {
    recipe.refuse({key}, "{}.path is \"\"; expected a file, a folder or a glob.", label);
  }
  if (std::ranges::find(formats, format) == formats.end()) {
    recipe.refuse({key}, "{}.format is \"{}\"; expected {}.", label, format,
                  joined(formats, ", ", " or "));
  } else if (!can_be_mixed(format, own)) {
    recipe.refuse({key},
                  "{}.format is {}, but data.format is {}; only text, bin and chat can be mixed.",
                  label, format, own);
  } else if ((format == "text" || format == "chat") && values.data.tokenizer.empty()) {
    recipe.refuse({key, "data.tokenizer"},
                  "{}.format is {}, but data.tokenizer is empty; set it to a folder with "
                  "tokenizer.json.",
                  label, format);
  }
  if (!item.documents.empty() && item.documents != "joined" && item.documents != "separate") {
    recipe.refuse({key}, "{}.documents is \"{}\"; expected joined or separate.", label,
                  item.documents);
  } else if (format == "chat" && item.documents == "joined") {
    recipe.refuse({key},
                  "{}.documents is joined, but conversations (format chat) are separate. Use "
                  "separate, or leave it out.",
                  label);
  }
}

template <class Item>
void check_names(Resolution& recipe, std::string_view key, const std::vector<Item>& items,
                 std::set<std::string>& names) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    check_item(recipe, key, items[i], fmt::format("{}[{}]", key, i));
    const std::string name = items[i].name.empty() ? name_of_path(items[i].path) : items[i].name;
    if (names.insert(name).second) continue;
    recipe.refuse({key}, "{}[{}] is called \"{}\", as another is; give it another name.", key, i,
                  name);
  }
}

double sum_of(const std::vector<double>& weights) {
  return std::accumulate(weights.begin(), weights.end(), 0.0);
}

void check_sources(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const auto& sources = values.data.sources;
  if (sources.empty()) return;
  if (!values.data.path.empty()) {
    recipe.refuse({kSources, "data.path"},
                  "data.sources and data.path are both set. Make the path one of the sources, or "
                  "leave one out.");
  }
  if (!values.data.validation_path.empty()) {
    recipe.refuse({"data.validation_path", kSources},
                  "data.validation_path is set, but data.sources has several texts. Use "
                  "data.validation_sets: [{{path: {}}}].",
                  values.data.validation_path);
  }
  if (values.training.num_epochs > 0 && sources.size() > 1) {
    recipe.refuse({"training.num_epochs", kSources},
                  "training.num_epochs is {}, but {} sources have epochs of their own. Use "
                  "training.max_steps.",
                  values.training.num_epochs, sources.size());
  }
  std::vector<double> weights;
  for (const DataSource& source : sources) weights.push_back(source.weight);
  if (values.data.stages.empty() && sum_of(weights) == 0.0) {
    recipe.refuse({kSources}, "data.sources: all weights are 0; nothing would be trained on.");
  }
  std::set<std::string> names;
  check_names(recipe, kSources, sources, names);
}

// A run goes from one shape to another through a checkpoint.
void check_shapes(Resolution& recipe) {
  const Recipe& values = recipe.values();
  if (!has_shapes(values)) return;
  if (!values.checkpoint.saves()) {
    recipe.refuse({kStages, "checkpoint.interval"},
                  "data.stages change the sequence length or batch size, and a run does that "
                  "through a checkpoint, but checkpoint.interval is 0. Set it.");
  }
  if (values.training.num_epochs > 0) {
    recipe.refuse({kStages, "training.num_epochs"},
                  "training.num_epochs is {}, but data.stages change the sequence length or batch "
                  "size. Use training.max_steps.",
                  values.training.num_epochs);
  }
}

void check_epochs(Resolution& recipe, const DataStage& stage, const std::string& label) {
  if (stage.epochs == 0.0) {
    if (!stage.epochs_of.empty()) {
      recipe.refuse({kStages}, "{} has epochs_of, but no epochs.", label);
    }
    return;
  }
  std::vector<std::string> names;
  for (const DataSource& source : recipe.values().data.sources) {
    names.push_back(source.name.empty() ? name_of_path(source.path) : source.name);
  }
  if (names.size() <= 1 && stage.epochs_of.empty()) return;
  if (std::ranges::find(names, stage.epochs_of) != names.end()) return;
  const std::vector<std::string_view> known(names.begin(), names.end());
  recipe.refuse({kStages}, "{}.epochs_of is \"{}\"; {}.", label, stage.epochs_of,
                known.empty() ? "there is only one text, so leave it out"
                              : "expected the name of a source: " + joined(known, ", ", " or "));
}

void check_stages(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const auto& stages = values.data.stages;
  if (stages.empty()) return;
  check_shapes(recipe);
  const bool has_weights =
      std::ranges::any_of(stages, [](const DataStage& stage) { return !stage.weights.empty(); });
  if (values.data.sources.empty() && has_weights) {
    return recipe.refuse({kStages, kSources},
                         "data.stages has weights, but there is no data.sources whose weights "
                         "they could be.");
  }
  const std::size_t num_sources = values.data.sources.size();
  const std::vector<StageSpan> spans = spans_of(values);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const std::string label = fmt::format("data.stages[{}]", i);
    const DataStage& stage = stages[i];
    const bool is_last = i + 1 == stages.size();
    const int num_lengths = (stage.steps > 0) + (stage.tokens > 0) + (stage.epochs > 0.0);
    if (num_lengths > 1) {
      recipe.refuse({kStages}, "{} has more than one of steps, tokens and epochs. Keep one.",
                    label);
    } else if (!is_last && num_lengths == 0) {
      recipe.refuse({kStages},
                    "{} has no steps, tokens or epochs; only the last stage may end with the run.",
                    label);
    }
    check_epochs(recipe, stage, label);
    std::vector<double> weights = stage.weights;
    if (num_sources == 0) {
      weights = {1.0};
    } else if (weights.empty()) {
      for (const DataSource& source : values.data.sources) weights.push_back(source.weight);
    } else if (weights.size() != num_sources) {
      recipe.refuse({kStages}, "{}.weights has {} numbers for {} sources.", label, weights.size(),
                    num_sources);
    }
    if (sum_of(weights) == 0.0) {
      recipe.refuse({kStages}, "{}: all weights are 0; nothing would be trained on.", label);
    }
    const std::int64_t max_steps = values.training.max_steps;
    const std::int64_t steps = spans[i].end_step;
    // How long epochs are is known once the data are open.
    const bool is_known =
        std::ranges::none_of(stages, [](const DataStage& other) { return other.epochs > 0.0; });
    if (!recipe.has_problems() && is_last && is_known && steps < max_steps) {
      recipe.refuse({kStages, "training.max_steps"},
                    "data.stages end after {} steps, but training.max_steps is {}. Lengthen the "
                    "last stage, or leave out its length.",
                    steps, max_steps);
    }
  }
}

void check_validation_sets(Resolution& recipe) {
  const Recipe& values = recipe.values();
  std::set<std::string> names;
  if (values.data.validation_fraction > 0.0) {
    for (const DataSource& source : values.data.sources) {
      names.insert(source.name.empty() ? name_of_path(source.path) : source.name);
    }
  }
  if (values.data.sources.empty() && validates_by_path(values)) names.insert("validation");
  check_names(recipe, kSets, values.data.validation_sets, names);
  const std::string& best_by = values.training.best_by;
  if (best_by.empty() || names.contains(best_by) || recipe.request().is_kept) return;
  const std::vector<std::string_view> known(names.begin(), names.end());
  recipe.refuse({"training.best_by"}, "training.best_by is \"{}\", but {}.", best_by,
                known.empty() ? "there are no validation sets"
                              : "the validation sets are " + joined(known, ", ", " and "));
}

void check_tasks(Resolution& recipe) {
  const std::vector<TaskFile>& tasks = recipe.values().training.tasks;
  if (!tasks.empty() && !validates(recipe.values()) && !recipe.request().is_kept) {
    recipe.refuse({kTasks, "data.validation_fraction"},
                  "{} belong to evaluations, and there is nothing to evaluate on. Set "
                  "data.validation_fraction, validation_path or validation_sets.",
                  kTasks);
  }
  std::set<std::string> names;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].path.empty()) {
      recipe.refuse({kTasks}, "{}[{}].path is \"\"; expected a file of questions.", kTasks, i);
    }
    const std::string name = tasks[i].name.empty() ? name_of_path(tasks[i].path) : tasks[i].name;
    if (names.insert(name).second) continue;
    recipe.refuse({kTasks}, "{}[{}] is called \"{}\", as another is; give it another name.", kTasks,
                  i, name);
  }
}

}  // namespace

void check_data(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const bool is_chat = values.data.format == DataFormat::kChat;
  if ((is_chat || values.data.format == DataFormat::kText) && values.data.tokenizer.empty()) {
    recipe.refuse({"data.tokenizer", "data.format"},
                  "data.format is {}, but data.tokenizer is empty; set it to a folder with "
                  "tokenizer.json.",
                  is_chat ? "chat" : "text");
  }
  if (is_chat && values.data.documents == DocumentChoice::kJoined) {
    recipe.refuse(
        {"data.documents", "data.format"},
        "data.documents is joined, but conversations (data.format chat) are separate. Use "
        "separate, or leave it out.");
  }
  if (const std::int64_t width = values.data.token_bytes;
      width != 0 && width != 1 && width != 2 && width != 4 && width != 8) {
    recipe.refuse({"data.token_bytes"}, "data.token_bytes is {}; tokens have 1, 2, 4 or 8 bytes.",
                  width);
  }
  if (!values.data.validation_path.empty() && values.data.validation_fraction > 0) {
    recipe.refuse({"data.validation_fraction", "data.validation_path"},
                  "data.validation_fraction is {}, but data.validation_path is set too. Keep one.",
                  values.data.validation_fraction);
  }
  check_sources(recipe);
  check_stages(recipe);
  check_validation_sets(recipe);
  check_tasks(recipe);
}

}  // namespace sherd::engine
