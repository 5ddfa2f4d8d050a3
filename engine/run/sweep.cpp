#include "engine/run/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/store/disk.h"
#include "core/error.h"
#include "core/human_text.h"
#include "core/json_bounds.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/stored.h"
#include "engine/report/run_history.h"

namespace sherd::engine {
namespace {

using Json = nlohmann::ordered_json;

struct Choice {
  std::string key;
  std::vector<std::string> values;
};

// Splits at commas outside of brackets, braces and quotes.
std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  char quote = 0;
  for (const char c : text) {
    if (c == ',' && depth == 0 && quote == 0) {
      parts.emplace_back();
      continue;
    }
    parts.back() += c;
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else {
      depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    }
  }
  return parts;
}

Choice choice_of(const std::string& set) {
  const std::size_t equals = set.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw UsageError("--set {}: expected key=value, or key=value,value,...", set);
  }
  Choice choice{set.substr(0, equals), split(set.substr(equals + 1))};
  if (choice.values.size() == 1) return choice;
  if (choice.key == "run.output_dir" || choice.key == "run.name") {
    throw UsageError("--set {}: a sweep names its runs itself; give {} one value.", set,
                     choice.key);
  }
  std::set<std::string> seen;
  for (const std::string& value : choice.values) {
    if (value.empty()) throw UsageError("--set {}: a value is empty.", set);
    if (!seen.insert(value).second) throw UsageError("--set {}: {} is there twice.", set, value);
  }
  return choice;
}

std::vector<Choice> choices_of(const std::vector<std::string>& sets) {
  std::vector<Choice> choices;
  bool varies = false;
  for (const std::string& set : sets) {
    choices.push_back(choice_of(set));
    const Choice& added = choices.back();
    varies |= added.values.size() > 1;
    if (std::count_if(choices.begin(), choices.end(),
                      [&](const Choice& other) { return other.key == added.key; }) > 1) {
      throw UsageError("--set {}: {} is set twice; list its values in one --set.", set, added.key);
    }
  }
  if (varies) return choices;
  throw UsageError(
      "a sweep needs a key with several values, such as --set optimizer.lr=1e-3,3e-4; `sherd "
      "train` "
      "trains one recipe.");
}

// "lr" for optimizer.lr, unless another key that varies ends alike.
std::string short_name(const std::string& key, const std::vector<Choice>& choices) {
  const auto last = [](const std::string& text) { return text.substr(text.rfind('.') + 1); };
  const auto alike = std::ranges::count_if(choices, [&](const Choice& other) {
    return other.values.size() > 1 && last(other.key) == last(key);
  });
  return alike > 1 ? key : last(key);
}

// Letters, digits and a few signs; everything else is a dash, one for several.
std::string for_folder(const std::string& value) {
  std::string name;
  for (const char c : value) {
    const bool stays =
        std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '+' || c == '-';
    if (stays) name += c;
    if (!stays && !name.empty() && name.back() != '-') name += '-';
  }
  while (name.ends_with('-')) name.pop_back();
  return name;
}

// Names that are equal, or too long for a file system, get a number.
void make_distinct(std::vector<SweepPoint>& points) {
  constexpr std::size_t kLongest = 200;
  std::set<std::string> seen;
  for (SweepPoint& point : points) {
    point.name.resize(std::min(point.name.size(), kLongest));
    const std::string name = point.name;
    for (int number = 2; !seen.insert(point.name).second; ++number) {
      point.name = fmt::format("{}-{}", name, number);
    }
  }
}

struct Figures {
  std::optional<double> loss, val_loss, tokens_per_s;
  std::optional<CurvePoint> best;
  std::int64_t step = 0;
};

Figures figures_of(const SweepRun& run) {
  try {
    const RunHistory history = read_history(run.folder);
    return {.loss = last_value(history.loss),
            .val_loss = last_value(history.val_loss),
            .tokens_per_s = median(history.tokens_per_s),
            .best = lowest(history.val_loss),
            .step = history.loss.empty() ? 0 : history.loss.back().step};
  } catch (const Error&) {  // it has none
    return {};
  }
}

// Null if no sweep wrote it.
Json parsed(const std::string& sweep) try {
  check_json_bounds(sweep, "");
  return Json::parse(sweep, nullptr, false);
} catch (const DataError&) {
  return {};
}

bool has(const Json& run, const char* key, const Json& value) {
  const auto found = run.find(key);
  return found != run.end() && *found == value;
}

std::string state_of(const SweepRun& run) {
  if (!run.exit_code) return "not run";
  if (*run.exit_code == 0) return run.was_done ? "done before" : "done";
  return fmt::format("code {}", *run.exit_code);
}

std::string loss_text(const std::optional<double>& loss) {
  return loss ? fmt::format("{:.4f}", *loss) : "-";
}

}  // namespace

std::vector<SweepPoint> sweep_points(const std::vector<std::string>& sets) {
  const std::vector<Choice> choices = choices_of(sets);
  std::vector<SweepPoint> points = {{}};
  for (const Choice& choice : choices) {
    std::vector<SweepPoint> longer;
    for (const SweepPoint& point : points) {
      for (const std::string& value : choice.values) {
        SweepPoint next = point;
        next.sets.push_back(choice.key + "=" + value);
        if (choice.values.size() > 1) {
          next.name += fmt::format("{}{}={}", next.name.empty() ? "" : "_",
                                   short_name(choice.key, choices), for_folder(value));
        }
        longer.push_back(std::move(next));
      }
    }
    points = std::move(longer);
  }
  make_distinct(points);
  return points;
}

RecipeRequest request_of(const RecipeRequest& sweep, const ResolvedRecipe& base,
                         const SweepPoint& point) {
  RecipeRequest request = sweep;
  request.sets = point.sets;
  request.sets.push_back(
      fmt::format("run.output_dir={}/{}", base.values.run.output_dir, point.name));
  if (!base.origin("run.name").is_given()) {
    request.sets.push_back("run.name=" + point.name);
  }
  return request;
}

bool is_done(const std::string& json, const std::string& folder, const ResolvedRecipe& recipe) {
  const Json sweep = parsed(json);
  if (!sweep.is_object() || !sweep.contains("runs")) return false;
  const bool succeeded = std::ranges::any_of(sweep.at("runs"), [&](const Json& run) {
    return run.is_object() && has(run, "folder", folder) && has(run, "exit_code", 0);
  });
  const std::string file = folder + "/recipe.yaml";
  checkpoint::Disk& disk = checkpoint::posix_disk();
  if (!succeeded || !checkpoint::exists(disk, file)) return false;
  const RecipeTexts stored =
      printed_values(checkpoint::read_file(disk, file, std::int64_t{1} << 20));
  return std::ranges::all_of(compared_values(recipe.values), [&](const auto& value) {
    const auto found = stored.find(value.first);
    return recipe.origin(value.first).kind == Origin::Kind::kNotYet ||
           (found != stored.end() && found->second == value.second);
  });
}

std::string sweep_text(const std::vector<SweepRun>& runs) {
  std::size_t widest = 3;
  for (const SweepRun& run : runs) widest = std::max(widest, run.point.name.size());
  std::string text = fmt::format("{:<{}}  {:<11} {:>8} {:>9} {:>16} {:>8}\n", "run", widest,
                                 "state", "step", "val loss", "best val loss", "tok/s");
  const SweepRun* best = nullptr;
  double lowest_loss = 0.0;
  for (const SweepRun& run : runs) {
    const Figures figures = figures_of(run);
    const std::string best_text =
        figures.best ? fmt::format("{:.4f} at {}", figures.best->value, figures.best->step) : "-";
    text += fmt::format("{:<{}}  {:<11} {:>8} {:>9} {:>16} {:>8}\n", run.point.name, widest,
                        state_of(run), figures.step, loss_text(figures.val_loss), best_text,
                        figures.tokens_per_s ? human_rate(*figures.tokens_per_s) : "-");
    if (!figures.best || (best && figures.best->value >= lowest_loss)) continue;
    best = &run;
    lowest_loss = figures.best->value;
  }
  if (best) {
    text += fmt::format("lowest validation loss: {:.4f}, {}\n", lowest_loss, best->folder);
  }
  return text;
}

std::string sweep_json(const std::vector<SweepRun>& runs) {
  Json list = Json::array();
  for (const SweepRun& run : runs) {
    const Figures figures = figures_of(run);
    Json line = {{"name", run.point.name}, {"folder", run.folder}, {"set", run.point.sets}};
    if (run.exit_code) line["exit_code"] = *run.exit_code;
    line["step"] = figures.step;
    if (figures.loss) line["loss"] = *figures.loss;
    if (figures.val_loss) line["val_loss"] = *figures.val_loss;
    if (figures.best) {
      line["best_val_loss"] = figures.best->value;
      line["best_step"] = figures.best->step;
    }
    if (figures.tokens_per_s) line["tokens_per_s"] = *figures.tokens_per_s;
    list.push_back(std::move(line));
  }
  return Json{{"runs", list}}.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace sherd::engine
