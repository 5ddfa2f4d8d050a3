#include "engine/recipe/adapter_from.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "engine/huggingface/adapter_folder.h"
#include "engine/huggingface/adapter_map.h"
#include "engine/huggingface/config.h"
#include "engine/huggingface/weight_map.h"
#include "engine/model/adapter.h"
#include "engine/recipe/model_from.h"
#include "engine/recipe/suggest.h"
#include "engine/recipe/values.h"

namespace sherd::engine {
namespace {

using huggingface::AdapterFolder;
using huggingface::AdapterPair;
using huggingface::Family;
using huggingface::Module;
using Names = std::vector<std::string>;

constexpr std::string_view kFrom = "model.from";
constexpr std::string_view kInit = "checkpoint.init_from";
constexpr std::string_view kBlock = "block.{}.";

void add_once(Names& names, std::string name) {
  if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
}

// "layers.3.mlp" is of "layers.{}.mlp".
bool is_of(std::string_view name, std::string_view pattern) {
  const std::size_t at = pattern.find("{}");
  if (at == std::string_view::npos) return name == pattern;
  if (!name.starts_with(pattern.substr(0, at))) return false;
  const std::string_view rest = name.substr(at);
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  return digits > 0 && is_of(rest.substr(digits), pattern.substr(at + 2));
}

const Module* find_module(const Family& family, std::string_view name) {
  for (const auto modules : family.modules) {
    for (const Module& module : modules) {
      const std::string theirs =
          std::string(module.outside_prefix ? "" : family.prefix) + std::string(module.theirs);
      std::string_view own = name;
      if (!module.each_head.empty()) {  // "q_layernorm.norms.3"
        own = own.substr(0, own.rfind(module.each_head.substr(0, module.each_head.find('{'))) - 1);
      }
      if (is_of(own, theirs) || name == module.in_memory) return &module;
    }
  }
  return nullptr;
}

/// The trainable form of an adapter's folder: one rank, one scale, and each target in every layer.
struct TrainableAdapter {
  std::int64_t rank = 0;
  double alpha = 0.0;
  Names targets, modules;
};

class Trainable {
 public:
  Trainable(const AdapterFolder& folder, const huggingface::ModelConfig& config)
      : folder_(folder), family_(*config.family), recipe_(recipe_of(config)) {}

  TrainableAdapter read() {
    if (folder_.pairs().empty()) refuse("it has no adapter of any matrix");
    for (const AdapterPair& pair : folder_.pairs()) add(pair);
    for (const auto& [target, found] : adapters_of_) {
      const bool of_experts = model::is_target_of_experts(target);
      const std::int64_t all = of_experts ? num_experts() : model_.num_layers;
      if (found == all) continue;
      refuse(fmt::format("its {} has adapters in {} of {} {}", target, found, all,
                         of_experts ? "experts" : "layers"));
    }
    for (const huggingface::WholeTensor& tensor : folder_.whole_tensors()) add(tensor);
    return std::move(adapter_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw UsageError(
        "{}: {}, so it can be used and merged (sherd export --merge), but not trained further.",
        folder_.path(), why);
  }

  std::string ours_of(const Module& module) const {
    const std::string_view ours = module.ours;
    return std::string(ours.starts_with(kBlock) ? ours.substr(kBlock.size()) : ours);
  }

  // Of all layers.
  std::int64_t num_experts() const {
    const std::string& layers = recipe_.moe.layers;
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < model_.num_layers; ++i) {
      if (layers[static_cast<std::size_t>(i) % layers.size()] == '1') {
        count += recipe_.moe.num_experts;
      }
    }
    return count;
  }

  void add(const AdapterPair& pair) {
    const Module* module = find_module(family_, pair.module);
    if (module == nullptr) {
      throw DataError("{}: has an adapter of {}, which models of type {} lack", folder_.path(),
                      pair.module, family_.model_type);
    }
    if (!module->ours.starts_with(kBlock)) {
      refuse(fmt::format("it has an adapter of {}", pair.module));
    }
    if (adapter_.targets.empty()) {
      adapter_.rank = pair.rank;
      adapter_.alpha = pair.alpha;
    }
    if (pair.rank != adapter_.rank || pair.alpha != adapter_.alpha) {
      refuse("its matrices differ in rank or alpha");
    }
    const std::string target =
        huggingface::target_of(ours_of(*module), module->part, is_gated(model_.activation));
    add_once(adapter_.targets, target);
    ++adapters_of_[target];
  }

  void add(const huggingface::WholeTensor& tensor) {
    const std::string name = tensor.name.substr(0, tensor.name.rfind('.'));
    const Module* module = find_module(family_, name);
    if (module == nullptr) {
      throw DataError("{}: holds {}, which models of type {} lack", folder_.path(), tensor.name,
                      family_.model_type);
    }
    const std::string ours = ours_of(*module);
    if (ours == "head" && model_.tie_embeddings) return;  // the embedding's other name
    const bool gated = is_gated(model_.activation);
    if (huggingface::modules_of(family_, std::string(module->ours)).size() > 1 &&
        huggingface::target_of(ours, module->part, gated) != ours) {
      refuse(fmt::format("{} is trained in full, but is part of a fused matrix here", name));
    }
    const bool has_weight = std::ranges::any_of(
        folder_.whole_tensors(), [&](const auto& one) { return one.name == name + ".weight"; });
    if (!has_weight) refuse(fmt::format("it trains the bias of {} alone", name));
    add_once(adapter_.modules, ours);
  }

  const AdapterFolder& folder_;
  const Family& family_;
  const Recipe recipe_;
  const Recipe::Model& model_ = recipe_.model;
  TrainableAdapter adapter_;
  std::map<std::string, std::int64_t> adapters_of_;
};

void assign(Resolution& recipe, std::string_view key, RawValue value, const std::string& path) {
  Assignment assignment;
  assignment.key = std::string(key);
  assignment.value = std::move(value);
  assignment.origin = {Origin::Kind::kFile, path};
  assignment.where = fmt::format("{}: {}", path, key);
  recipe.assign(assignment);
}

RawValue quoted(std::string text) {
  return {.kind = RawValue::Kind::kQuoted, .text = std::move(text)};
}

RawValue list_of(const Names& names) {
  RawValue list{.kind = RawValue::Kind::kList};
  for (const std::string& name : names) list.items.push_back(quoted(name));
  return list;
}

// Keys that aren't set come from the folder; set keys must agree with it.
template <class T>
void take(Resolution& recipe, std::string_view key, T& member, T folders, const std::string& path) {
  if (!recipe.is_set(key)) {
    return assign(recipe, key, parse_value(fmt::format("{}", folders), path), path);
  }
  if (member == folders) return;
  recipe.refuse({key, kInit}, "{} is {}, but the adapter of {} has {}. Leave it out.", key, member,
                path, folders);
}

// Including the tokens that were added for the adapter.
void take_tokenizer(Resolution& recipe, const std::string& path) {
  const DataFormat format = recipe.values().data.format;
  const bool reads_text =
      recipe.is_set("data.format") && (format == DataFormat::kText || format == DataFormat::kChat);
  if (!reads_text || recipe.is_set("data.tokenizer")) return;
  if (!checkpoint::exists(checkpoint::posix_disk(), path + "/tokenizer.json")) return;
  assign(recipe, "data.tokenizer", quoted(path), path);
}

huggingface::ModelConfig config_of_base(const Recipe& recipe) {
  return huggingface::read_config(checkpoint::posix_disk(), recipe.model.from);
}

}  // namespace

bool begins_with_adapter(const Recipe& recipe) {
  const std::string& init = recipe.checkpoint.init_from;
  return !init.empty() && huggingface::is_adapter_folder(checkpoint::posix_disk(), init);
}

std::string base_of(const Recipe& recipe) {
  return begins_with_adapter(recipe) ? recipe.model.from : recipe.checkpoint.init_from;
}

void take_vocabulary_of_adapter(Resolution& recipe) {
  const Recipe& values = recipe.values();
  if (!recipe.is_set(kInit) || !begins_with_adapter(values)) return;
  const std::string& path = values.checkpoint.init_from;
  const AdapterFolder folder(checkpoint::posix_disk(), path);
  const std::int64_t rows = huggingface::vocabulary_rows(folder, *config_of_base(values).family);
  if (rows <= values.model.vocab_size) return;
  assign(recipe, "model.vocab_size", parse_value(std::to_string(rows), path), path);
}

bool take_adapter_from(Resolution& recipe) {
  Recipe& values = recipe.values();
  if (!recipe.is_set(kInit) || !begins_with_adapter(values)) return true;
  auto& disk = checkpoint::posix_disk();
  const std::string& path = values.checkpoint.init_from;
  const AdapterFolder folder(disk, path);
  if (!recipe.is_set(kFrom) || values.model.from.empty()) {
    if (folder.base().empty() || !checkpoint::exists(disk, folder.base())) {
      recipe.refuse({kInit, kFrom},
                    "{}: the adapter is for {}, which is no folder here. Set model.from to it.",
                    path, folder.base().empty() ? "a model that it doesn't name" : folder.base());
      return false;
    }
    assign(recipe, kFrom, quoted(folder.base()), path);
  }
  if (!checkpoint::exists(disk, values.model.from)) return true;  // take_model_from reports it
  if (recipe.is_set("adapter.type") && values.adapter.type == AdapterChoice::kNone) {
    recipe.refuse(
        {"adapter.type", kInit},
        "adapter.type is none, but checkpoint.init_from {} is an adapter. Leave "
        "adapter.type out, or train the whole model that sherd export --merge makes of it.",
        path);
    return false;
  }
  const TrainableAdapter adapter = Trainable(folder, config_of_base(values)).read();
  if (!recipe.is_set("adapter.type")) {
    assign(recipe, "adapter.type", parse_value("lora", path), path);
  }
  take_tokenizer(recipe, path);
  take(recipe, "adapter.rank", values.adapter.rank, adapter.rank, path);
  take(recipe, "adapter.alpha", values.adapter.alpha, adapter.alpha, path);
  take(recipe, "adapter.rslora", values.adapter.rslora, folder.rslora(), path);
  if (!recipe.is_set("adapter.targets")) {
    assign(recipe, "adapter.targets", list_of(adapter.targets), path);
  }
  if (!recipe.is_set("adapter.modules_to_save")) {
    assign(recipe, "adapter.modules_to_save", list_of(adapter.modules), path);
  }
  return !recipe.has_problems();
}

void check_adapter_from(Resolution& recipe) {
  const Recipe& values = recipe.values();
  if (recipe.has_problems() || !recipe.is_set(kInit) || !begins_with_adapter(values)) return;
  const std::string& path = values.checkpoint.init_from;
  const AdapterFolder folder(checkpoint::posix_disk(), path);
  TrainableAdapter adapter = Trainable(folder, config_of_base(values)).read();
  const auto compare = [&](std::string_view key, Names own, Names folders) {
    std::ranges::sort(own);
    std::ranges::sort(folders);
    if (own == folders) return;
    const auto text = [](const Names& names) {
      return joined(std::vector<std::string_view>(names.begin(), names.end()), ", ", ", ");
    };
    recipe.refuse({key, kInit}, "{} is [{}], but the adapter of {} has [{}]. Leave it out.", key,
                  text(own), path, text(folders));
  };
  compare("adapter.targets", values.adapter.targets, std::move(adapter.targets));
  compare("adapter.modules_to_save", values.adapter.modules_to_save, std::move(adapter.modules));
}

}  // namespace sherd::engine
