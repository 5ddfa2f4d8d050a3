#include "engine/huggingface/adapter_folder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "checkpoint/format/strict_json.h"
#include "core/error.h"
#include "core/shape_text.h"

namespace sherd::huggingface {
namespace {

using checkpoint::printable;
using nlohmann::json;

constexpr const char* kWeightsName = "adapter_model.safetensors";
constexpr const char* kPickleName = "adapter_model.bin";
constexpr std::string_view kRoot = "base_model.model.";
constexpr std::int64_t kMaxConfigBytes = 16 << 20;

// With any other value than missing, null, false or nothing, it is an adapter that we haven't.
constexpr auto kForeign = std::to_array<std::string_view>({
    "use_dora",
    "lora_bias",
    "use_qalora",
    "alora_invocation_tokens",
    "arrow_config",
    "layer_replication",
    "megatron_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
});
// Beginnings that leave the base as it is.
constexpr auto kPlainBeginnings =
    std::to_array<std::string_view>({"gaussian", "eva", "orthogonal"});

bool says_nothing(const json& value) {
  return value.is_null() || value == false ||
         ((value.is_array() || value.is_object()) && value.empty());
}

[[noreturn]] void refuse(const std::string& path, std::string_view key, const json& value) {
  throw DataError("{}: {} is {}; only LoRA and rsLoRA without it are read", path, key,
                  printable(value.dump()));
}

// Names in multi-part models become the names of their text part.
std::string name_of_text(std::string name) {
  for (const auto& [from, to] :
       {std::pair("model.language_model.", "model."), std::pair("language_model.model.", "model."),
        std::pair("language_model.lm_head.", "lm_head.")}) {
    if (name.starts_with(from)) return to + name.substr(std::string_view(from).size());
  }
  return name;
}

using Alphas = std::vector<std::pair<std::string, double>>;

// As PEFT compares: the whole name, or its end from a point on.
bool matches(std::string_view module, std::string_view pattern) {
  if (!module.ends_with(pattern)) return false;
  return module.size() == pattern.size() || module[module.size() - pattern.size() - 1] == '.';
}

double number_in(const json& config, const char* key, double missing, const std::string& path) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return missing;
  if (!found->is_number()) throw DataError("{}: {} isn't a number", path, key);
  return found->get<double>();
}

// In the file's order, in which PEFT looks for the first that matches.
Alphas alphas_of(const nlohmann::ordered_json& config, const std::string& path) {
  Alphas alphas;
  const auto found = config.find("alpha_pattern");
  if (found == config.end() || says_nothing(*found)) return alphas;
  if (!found->is_object()) refuse(path, "alpha_pattern", *found);
  for (const auto& [pattern, alpha] : found->items()) {
    const bool is_plain = pattern.find_first_of("^$*+?()[]{}|\\") == std::string::npos;
    if (!is_plain || !alpha.is_number()) refuse(path, "alpha_pattern", *found);
    alphas.emplace_back(pattern, alpha.get<double>());
  }
  return alphas;
}

checkpoint::SafetensorsFolder open_tensors(checkpoint::Disk& disk, const std::string& folder) {
  if (!checkpoint::exists(disk, folder + "/" + kWeightsName) &&
      checkpoint::exists(disk, folder + "/" + kPickleName)) {
    throw DataError(
        "{}/{}: is a pickle, which can run code, so it isn't read; save the adapter as safetensors "
        "(PEFT: save_pretrained).",
        folder, kPickleName);
  }
  return {disk, folder, kWeightsName};
}

}  // namespace

struct AdapterFolder::Config {
  std::string path;
  double alpha = 0.0;
  Alphas alphas;

  /// Of a module, which has one name in the folder and one in the model's text part.
  double alpha_of(std::string_view module, std::string_view in_text) const {
    for (const auto& [pattern, own] : alphas) {
      if (matches(module, pattern) || matches(in_text, pattern)) return own;
    }
    return alpha;
  }
};

bool is_adapter_folder(checkpoint::Disk& disk, const std::string& folder) {
  std::error_code error;
  return std::filesystem::is_directory(folder, error) &&
         checkpoint::exists(disk, folder + "/" + kAdapterConfigName);
}

AdapterFolder::AdapterFolder(checkpoint::Disk& disk, const std::string& folder)
    : disk_(disk), tensors_(open_tensors(disk, folder)) {
  read_config(path() + "/" + kAdapterConfigName);
}

void AdapterFolder::read_config(const std::string& path) {
  const std::string text = checkpoint::read_followed(disk_, path, kMaxConfigBytes);
  const json config = checkpoint::parse_strict(text, path);
  if (!config.is_object()) throw DataError("{}: isn't an object", path);
  const json type = config.value("peft_type", json());
  if (type != "LORA") {
    throw DataError("{}: peft_type is {}; only LORA is read", path, printable(type.dump()));
  }
  for (const std::string_view key : kForeign) {
    const auto found = config.find(key);
    if (found != config.end() && !says_nothing(*found)) refuse(path, key, *found);
  }
  const json begins = config.value("init_lora_weights", json(true));
  const std::string name = begins.is_string() ? begins.get<std::string>() : "";
  const bool is_plain = begins.is_boolean() || begins.is_null() ||
                        std::ranges::find(kPlainBeginnings, name) != kPlainBeginnings.end();
  if (!is_plain) refuse(path, "init_lora_weights", begins);
  const json base = config.value("base_model_name_or_path", json());
  if (base.is_string()) base_ = base.get<std::string>();
  const json rslora = config.value("use_rslora", json(false));
  rslora_ = rslora.is_boolean() && rslora.get<bool>();
  dropout_ = number_in(config, "lora_dropout", 0.0, path);
  constexpr double kPeftsAlpha = 8.0;
  sort_tensors({path, number_in(config, "lora_alpha", kPeftsAlpha, path),
                alphas_of(checkpoint::parse_strict_ordered(text, path), path)});
}

// Every tensor is an A, a B, or one that takes the place of the model's.
void AdapterFolder::sort_tensors(const Config& config) {
  std::map<std::string, AdapterPair> pairs;
  for (const auto& [name, place] : tensors_.places()) {
    if (!name.starts_with(kRoot)) {
      throw DataError("{}: tensor \"{}\"; names begin with {}", path(), printable(name), kRoot);
    }
    if (!tensors_.tensor(place).dtype()) {
      throw DataError("{}: tensor \"{}\" is of type {}; F32, BF16 and F16 are read", path(),
                      printable(name), printable(tensors_.tensor(place).type));
    }
    std::string own = name_of_text(name.substr(kRoot.size()));
    // The module inside PEFT's, such as "lm_head.base_layer.weight": the model's own tensor.
    constexpr std::string_view kInside = ".base_layer.";
    if (const std::size_t inside = own.find(kInside); inside != std::string::npos) {
      own.replace(inside, kInside.size(), ".");
    }
    const std::size_t lora = own.find(".lora_");
    if (lora == std::string::npos) {
      whole_.push_back({own, name});
      continue;
    }
    const std::string kind = own.substr(lora + 1);
    AdapterPair& pair = pairs[own.substr(0, lora)];
    pair.module = own.substr(0, lora);
    if (kind == "lora_A.weight" || kind == "lora_embedding_A") {
      pair.a = name;
    } else if (kind == "lora_B.weight" || kind == "lora_embedding_B") {
      pair.b = name;
    } else {
      throw DataError("{}: tensor \"{}\" belongs to an adapter that isn't supported{}", path(),
                      printable(name), kind.starts_with("lora_magnitude") ? " (DoRA)" : "");
    }
    pair.is_embedding = pair.is_embedding || kind.starts_with("lora_embedding");
  }
  for (auto& [module, pair] : pairs) {
    if (pair.a.empty() || pair.b.empty()) {
      throw DataError("{}: {} has {} alone", path(), printable(module), pair.a.empty() ? "B" : "A");
    }
    const auto &a = shape_of(pair.a), &b = shape_of(pair.b);
    if (a.size() != 2 || b.size() != 2 || a[0] != b[1] || a[0] == 0) {
      throw DataError("{}: A of {} is {} and B {}; expected [rank, inputs] and [outputs, rank]",
                      path(), printable(module), shape_text(a), shape_text(b));
    }
    pair.rank = a[0];
    std::string in_folder = pair.a.substr(kRoot.size());
    in_folder.resize(in_folder.find(".lora_"));
    pair.alpha = config.alpha_of(in_folder, module);
    pairs_.push_back(std::move(pair));
  }
}

double AdapterFolder::scale_of(const AdapterPair& pair) const {
  const auto rank = static_cast<double>(pair.rank);
  return pair.alpha / (rslora_ ? std::sqrt(rank) : rank);
}

const std::vector<std::int64_t>& AdapterFolder::shape_of(const std::string& in_file) const {
  const checkpoint::SafetensorsTensor* tensor = tensors_.find(in_file);
  SHERD_CHECK(tensor, "{} isn't in {}", in_file, path());
  return tensor->shape;
}

std::vector<float> AdapterFolder::read(const std::string& in_file) const {
  std::int64_t numel = 1;
  for (const std::int64_t dimension : shape_of(in_file)) numel *= dimension;
  std::vector<float> values(static_cast<std::size_t>(numel));
  std::vector<std::uint16_t> scratch(values.size());
  checkpoint::SafetensorsReader reader(disk_, tensors_);
  reader.read(tensors_.places().at(in_file), 0, numel, values.data(), scratch.data());
  return values;
}

std::int64_t vocabulary_rows(const AdapterFolder& adapter, const Family& family) {
  for (const auto modules : family.modules) {
    for (const Module& module : modules) {
      if (module.ours != "embedding.token" && module.ours != "head") continue;
      const std::string prefix = module.outside_prefix ? "" : std::string(family.prefix);
      for (const WholeTensor& tensor : adapter.whole_tensors()) {
        const bool is_it =
            tensor.name == prefix + std::string(module.theirs) + ".weight" ||
            (!module.in_memory.empty() && tensor.name == std::string(module.in_memory) + ".weight");
        if (is_it) return adapter.shape_of(tensor.in_file).front();
      }
    }
  }
  return 0;
}

}  // namespace sherd::huggingface
