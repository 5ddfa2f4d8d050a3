#include "engine/recipe/model_from.h"

#include <algorithm>
#include <array>

#include "engine/huggingface/model_files.h"
#include "engine/huggingface/special_tokens.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/stored.h"
#include "engine/recipe/values.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kModelFrom = "model.from";
constexpr std::string_view kLength = "model.max_seq_length";
constexpr std::string_view kTokenizer = "data.tokenizer";
constexpr std::string_view kVocabulary = "model.vocab_size";
constexpr std::string_view kAdded = "model.add_special_tokens";
// Keys that don't determine the model.
constexpr auto kRunsOwn = std::to_array<std::string_view>(
    {kModelFrom, kAdded, "model.dropout", kLength, "model.init_std", "moe.balance_scope",
     "moe.balance_loss", "moe.z_loss", "moe.bias_update_rate", "moe.buffer_rows",
     "moe.grouped_gemm"});

// The folder, or the copy that the run keeps; "" if there is neither.
std::string find_folder(const Recipe& recipe) {
  auto& disk = checkpoint::posix_disk();
  const std::string& from = recipe.model.from;
  if (checkpoint::exists(disk, from)) return from;
  const std::string& output_dir = recipe.run.output_dir;
  return huggingface::keeps(disk, output_dir, from) ? huggingface::kept_folder(output_dir) : "";
}

Assignment assignment_of(const huggingface::ConfigValue& value, const std::string& path) {
  return {value.key,
          parse_value(value.value, path),
          {Origin::Kind::kFile, path},
          fmt::format("{}: {}", path, value.from)};
}

bool has_learned_positions(const huggingface::ModelConfig& config) {
  return std::any_of(config.values.begin(), config.values.end(), [](const auto& value) {
    return value.key == "model.positions" && value.value == "learned";
  });
}

void assign_values(Resolution& recipe, const huggingface::ModelConfig& config) {
  for (const huggingface::ConfigValue& value : config.values) {
    if (field_index(value.key) < 0) {
      recipe.report(fmt::format("{}: {} needs {}, which this version doesn't have.", config.path,
                                value.from, value.key));
      continue;
    }
    if (value.key == kLength && recipe.is_set(value.key)) continue;
    recipe.assign(assignment_of(value, config.path));
  }
  if (config.balance_loss && !recipe.is_set(config.balance_loss->key)) {
    recipe.assign(assignment_of(*config.balance_loss, config.path));
  }
}

// A chat template may come from another tokenizer, but its ids must mean the model's tokens.
void note_other_tokenizer(Resolution& recipe, const std::string& folder) {
  auto& disk = checkpoint::posix_disk();
  const std::string& other = recipe.values().data.tokenizer;
  if (huggingface::have_same_tokenizer(disk, other, folder)) return;
  recipe.note(fmt::format(
      "the tokenizer of {} isn't that of {}: its ids must mean the same tokens to the model", other,
      recipe.values().model.from));
}

// Rows for tokens that the tokenizer lacks.
void add_tokens(Resolution& recipe, const huggingface::ModelConfig& config) {
  const Recipe& values = recipe.values();
  const auto& tokens = values.model.add_special_tokens;
  if (tokens.empty() || values.data.tokenizer.empty()) return;
  const std::int64_t rows = values.model.vocab_size, num_tokens = std::ssize(tokens);
  const std::int64_t num_ids =
      huggingface::num_ids_with(checkpoint::posix_disk(), values.data.tokenizer, tokens);
  const std::int64_t num_there = std::min(num_tokens, rows - (num_ids - num_tokens));
  if (num_there > 0) {
    recipe.note(fmt::format(
        "the model has more rows than its tokenizer has tokens: {} of the {} added tokens use such "
        "rows unchanged",
        num_there, num_tokens));
  }
  if (num_ids > rows) {
    const huggingface::ConfigValue value{std::string(kVocabulary), std::to_string(num_ids),
                                         fmt::format("vocab_size with {}", kAdded)};
    recipe.assign(assignment_of(value, config.path));
  }
}

}  // namespace

bool take_model_from(Resolution& recipe) {
  const std::string from = recipe.values().model.from;
  if (!recipe.is_set(kModelFrom) || from.empty()) return true;
  const std::string folder = find_folder(recipe.values());
  if (folder.empty()) {
    recipe.refuse({kModelFrom}, "model.from is {}, and there is no such folder.", from);
    return false;
  }
  auto& disk = checkpoint::posix_disk();
  const huggingface::ModelConfig config = huggingface::read_config(disk, folder);
  // A shorter context is the run's own choice, unless there is a row for each position.
  const bool length_is_models = has_learned_positions(config);
  for (const Field& field : recipe_fields()) {
    const bool compared = says_which_model(field.key) || (field.key == kLength && length_is_models);
    if (compared && recipe.is_set(field.key)) recipe.put_aside(field.key);
  }
  assign_values(recipe, config);
  if (const auto most = config.most_positions;
      most && recipe.values().model.max_seq_length > *most) {
    recipe.refuse({kLength},
                  "{} is {}, but up to {} positions are computed as {} says; beyond them {}, which "
                  "this version doesn't have. Set at most {}.",
                  kLength, recipe.values().model.max_seq_length, *most, config.path, config.beyond,
                  *most);
  }
  if (!config.whole.empty()) {
    recipe.note(
        fmt::format("{}: the model has several parts ({}); only its text part is used and exported",
                    config.path, config.whole));
  }
  if (config.codes) {
    recipe.note(fmt::format("{}: weights of {} bits are decoded; an export has weights of {}",
                            config.path, config.codes.mxfp4 ? 4 : 8,
                            name_of(config.dtype.value_or(DType::kBF16))));
  }
  if (config.prediction_layers > 0 && !recipe.values().mtp.active()) {
    recipe.note(
        fmt::format("{}: {} layer{} for multi-token prediction, if the folder has {}, {} "
                    "neither read nor exported (mtp.num_layers)",
                    config.path, config.prediction_layers, config.prediction_layers == 1 ? "" : "s",
                    config.prediction_layers == 1 ? "it" : "them",
                    config.prediction_layers == 1 ? "is" : "are"));
  }
  std::string unused;
  for (const std::string& key : config.unused) unused += (unused.empty() ? "" : ", ") + key;
  if (!unused.empty()) recipe.note(fmt::format("{}: not used: {}", config.path, unused));
  auto& data = recipe.values().data;
  const bool has_tokenizer = checkpoint::exists(disk, folder + "/tokenizer.json");
  // Bytes as ids would be other tokens than those that the model knows.
  if (!recipe.is_set("data.format") && has_tokenizer) {
    recipe.assign({"data.format",
                   {.kind = RawValue::Kind::kPlain, .text = "text"},
                   {Origin::Kind::kFile, std::string(kModelFrom)},
                   std::string(kModelFrom)});
  }
  const bool is_text = recipe.is_set("data.format") &&
                       (data.format == DataFormat::kText || data.format == DataFormat::kChat);
  const bool is_bin = recipe.is_set("data.format") && data.format == DataFormat::kBin;
  // Text needs one. If its format isn't supported, opening it reports that.
  if (!recipe.is_set(kTokenizer) && (is_text || (is_bin && has_tokenizer))) {
    recipe.assign({std::string(kTokenizer),
                   {.kind = RawValue::Kind::kQuoted, .text = folder},
                   {Origin::Kind::kFile, std::string(kModelFrom)},
                   std::string(kModelFrom)});
  }
  if (has_tokenizer && data.tokenizer == from) data.tokenizer = folder;
  if (recipe.is_set(kTokenizer) && !data.tokenizer.empty()) note_other_tokenizer(recipe, folder);
  add_tokens(recipe, config);
  return true;
}

void check_model_from(Resolution& recipe) {
  for (const Resolution::PutAside& written : recipe.all_put_aside()) {
    const Field& field = recipe_fields()[row_of(written.key)];
    const std::string now = format_value(field, recipe.values());
    if (now == written.text) continue;
    recipe.report(fmt::format("{}: {} is {}, but the model of {} has {}. Leave it out.",
                              written.where, written.key, written.text, recipe.values().model.from,
                              now));
  }
}

const huggingface::Family* family_of(const Recipe& recipe) {
  if (recipe.model.from.empty()) return nullptr;
  const std::string folder = find_folder(recipe);
  if (folder.empty()) return nullptr;
  return huggingface::read_config(checkpoint::posix_disk(), folder).family;
}

bool says_which_model(std::string_view key) {
  return (key.starts_with("model.") || key.starts_with("moe.")) &&
         std::find(kRunsOwn.begin(), kRunsOwn.end(), key) == kRunsOwn.end();
}

Recipe recipe_of(const huggingface::ModelConfig& config) {
  std::map<std::string, std::string> blocks;  // as YAML, by name
  for (const huggingface::ConfigValue& value : config.values) {
    const std::size_t dot = value.key.find('.');
    std::string& block = blocks[value.key.substr(0, dot)];
    block += fmt::format("  {}: {}\n", value.key.substr(dot + 1), value.value);
  }
  std::string model;
  for (const auto& [name, keys] : blocks) model += name + ":\n" + keys;
  RecipeRequest request;
  request.path = config.path;
  request.text = model + "training: {seq_length: 1, micro_batch_size: 1, max_steps: 1}\n";
  request.reads_data = false;
  return resolve_recipe(request).values;
}

std::map<std::string, std::string> model_values(const huggingface::ModelConfig& config) {
  const Recipe recipe = recipe_of(config);
  std::map<std::string, std::string> values;
  for (const Field& field : recipe_fields()) {
    if (says_which_model(field.key)) values.emplace(field.key, format_value(field, recipe));
  }
  return values;
}

}  // namespace sherd::engine
