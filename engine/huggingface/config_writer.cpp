#include "engine/huggingface/config_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/format/strict_json.h"
#include "core/error.h"
#include "engine/huggingface/family_writer.h"
#include "engine/huggingface/rotary_spelling.h"

namespace sherd::huggingface {
namespace {

using nlohmann::ordered_json;

std::string_view torch_name(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    default:
      return "float32";
  }
}

void set_types(ordered_json& config, const Family& family, DType dtype) {
  config["architectures"] = {family.architecture};
  config["dtype"] = torch_name(dtype);
  config["torch_dtype"] = torch_name(dtype);
}

std::string text_of(const ordered_json& config) {
  return config.dump(2) + "\n";
}

}  // namespace

std::string updated_config(std::string_view kept, const std::string& path, DType dtype) {
  ordered_json config = checkpoint::parse_strict_ordered(kept, path);
  try {
    const Family* family = find_family(config.value("model_type", std::string()));
    if (!family) throw DataError("{}: its model_type isn't known", path);
    set_types(config, *family, dtype);
    add_both_spellings(config, *family);
  } catch (const ordered_json::exception&) {
    throw DataError("{}: a value in rope_parameters is of an unexpected type", path);
  }
  return text_of(config);
}

std::string config_of(const Family& family, const ModelTexts& values, DType dtype) {
  ordered_json config = {{"model_type", family.model_type}};
  set_types(config, family, dtype);
  FamilyWriter(family, values, config).write();
  return text_of(config);
}

}  // namespace sherd::huggingface
