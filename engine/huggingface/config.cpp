#include "engine/huggingface/config.h"

#include <fmt/format.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "checkpoint/format/strict_json.h"
#include "checkpoint/interchange/safetensors.h"
#include "core/error.h"
#include "engine/huggingface/config_reader.h"
#include "engine/huggingface/text_part.h"

namespace sherd::huggingface {
namespace {

using checkpoint::printable;
using nlohmann::json;

constexpr std::int64_t kMaxModelConfigBytes = 16 << 20;

std::string known_types() {
  std::string types;
  for (const Family* family : all_families()) {
    types += fmt::format("{}{}", types.empty() ? "" : ", ", family->model_type);
  }
  for (const Whole& whole : models_of_parts()) types += fmt::format(", {}", whole.model_type);
  return types;
}

std::optional<DType> dtype_of(const json& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto found = config.find(key);
    if (found == config.end() || !found->is_string()) continue;
    const auto& name = found->get_ref<const std::string&>();
    if (name == "bfloat16") return DType::kBF16;
    if (name == "float16") return DType::kF16;
    if (name == "float32") return DType::kF32;
  }
  return std::nullopt;
}

const Family& family_of(const json& config, const std::string& path) {
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) {
    throw DataError("{}: has no model_type, so the kind of model is unknown", path);
  }
  const auto& name = type->get_ref<const std::string&>();
  const Family* family = find_family(name);
  if (family) return *family;
  for (const Lacking& lacking : lacking_families()) {
    if (lacking.model_type != name) continue;
    throw DataError("{}: model_type is \"{}\", which has {}; that isn't supported", path, name,
                    lacking.why);
  }
  throw DataError("{}: model_type is \"{}\"; known are {}", path, printable(name), known_types());
}

// With each setting under its usual name.
json without_aliases(json config, const Family& family) {
  for (const Alias& alias : family.aliases) {
    const auto found = config.find(alias.name);
    if (found == config.end()) continue;
    config[std::string(alias.theirs)] = *found;
    config.erase(std::string(alias.name));
  }
  return config;
}

// Codes of 4 bits, or of 8 with scales of blocks; nothing for other forms.
CodeBlocks code_blocks(const json& quantization) {
  if (!quantization.is_object()) return {};
  const json none;
  const auto member = [&](const char* key) -> const json& {
    const auto found = quantization.find(key);
    return found == quantization.end() ? none : *found;
  };
  const json& block = member("weight_block_size");
  const json& format = member("fmt");
  if (member("quant_method") == "mxfp4") return {.mxfp4 = true};
  const bool is_e4m3 = format.is_null() || format == "e4m3" || format == "float8_e4m3fn";
  if (member("quant_method") != "fp8" || !is_e4m3) return {};
  if (!block.is_array() || block.size() != 2) return {};
  for (const json& size : block) {
    if (!size.is_number_unsigned() || size < 1 || size > 1 << 20) return {};
  }
  return {block[0].get<std::int64_t>(), block[1].get<std::int64_t>()};
}

// transformers adds c k where tokens are spread evenly, over all layers pooled; Sherd adds its
// coefficient for each layer. Only where output_router_logits is true.
std::optional<ConfigValue> balance_loss(const json& config, const ModelConfig& model) {
  constexpr const char* kCoefficient = "router_aux_loss_coef";
  const std::string per_token = value_of(model, "moe.experts_per_token");
  const std::string layers = value_of(model, "model.num_layers");
  std::string mask = value_of(model, "moe.layers");
  if (!model.family->balances || per_token.empty()) return {};
  if (config.value("output_router_logits", json()) != true) return {};
  const json coefficient = config.value(kCoefficient, json());
  if (!coefficient.is_number()) return {};
  std::erase(mask, '"');
  std::int64_t with_experts = 0;
  constexpr double kMostLayers = 1 << 20;  // more are refused with the recipe's values
  const json count = json::parse(layers, nullptr, false),
             chosen = json::parse(per_token, nullptr, false);
  if (!count.is_number() || !chosen.is_number())
    return {};  // which is refused with the recipe's values
  const auto num_layers = count.get<double>();
  for (std::size_t i = 0; static_cast<double>(i) < std::min(num_layers, kMostLayers); ++i) {
    with_experts += mask.empty() || mask[i % mask.size()] == '1' ? 1 : 0;
  }
  const double c = coefficient.get<double>();
  const double value =
      c * chosen.get<double>() / static_cast<double>(std::max<std::int64_t>(1, with_experts));
  return ConfigValue{"moe.balance_loss", fmt::format("{}", value),
                     fmt::format("{} {:g}", kCoefficient, c)};
}

}  // namespace

std::string value_of(const ModelConfig& config, std::string_view key) {
  for (const ConfigValue& value : config.values) {
    if (value.key == key) return value.value;
  }
  return {};
}

ModelConfig parse_config(std::string_view text, const std::string& path) {
  const json whole = checkpoint::parse_strict(text, path);
  if (!whole.is_object()) throw DataError("{}: isn't an object", path);
  const std::optional<json> part = text_part(whole, path);
  CodeBlocks codes;
  for (const json* one : {&whole, part ? &*part : &whole}) {
    if (const auto found = one->find("quantization_config");
        found != one->end() && !found->is_null()) {
      codes = code_blocks(*found);
      if (codes) continue;
      throw DataError(
          "{}: the model is quantized (quantization_config) in a form that isn't read; take the "
          "folder of the model that it was made from",
          path);
    }
  }
  ModelConfig result;
  result.path = path;
  result.codes = codes;
  if (part) result.whole = whole.at("model_type").get<std::string>();
  result.family = &family_of(part ? *part : whole, path);
  const json config = without_aliases(part ? *part : whole, *result.family);
  result.dtype = dtype_of(config);
  ConfigReader reader(config, result);
  try {
    reader.read_tables(*result.family);
  } catch (const json::exception&) {
    throw DataError("{}: a value in rope_parameters is of an unexpected type", path);
  } catch (const std::logic_error&) {  // of std::stod
    throw DataError("{}: a value that must be a number is something else", path);
  }
  result.balance_loss = balance_loss(config, result);
  const std::vector<std::string> unused = reader.unused();
  result.unused.insert(result.unused.end(), unused.begin(), unused.end());
  if (!part) return result;
  for (const auto& [key, value] : whole.items()) {
    if (is_of_whole(key) && !value.is_null()) result.unused.push_back(printable(key));
  }
  return result;
}

ModelConfig read_config(checkpoint::Disk& disk, const std::string& folder) {
  std::string path = folder;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  path += std::string("/") + kConfigName;
  return parse_config(checkpoint::read_followed(disk, path, kMaxModelConfigBytes), path);
}

}  // namespace sherd::huggingface
