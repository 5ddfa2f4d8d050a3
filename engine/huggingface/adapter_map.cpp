#include "engine/huggingface/adapter_map.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace sherd::huggingface {
namespace {

constexpr std::string_view kBlock = "block.{}.";
const std::string kAdapterRoot = "base_model.model.";

bool is_transposed(const Family& family) {
  for (const auto modules : family.modules) {
    for (const Module& module : modules) {
      if (module.transposed) return true;
    }
  }
  return false;
}

bool is_one_of(const std::vector<const Module*>& modules, const Module& module) {
  return std::ranges::any_of(modules,
                             [&](const Module* one) { return one->theirs == module.theirs; });
}

void add_once(std::vector<std::string>& names, std::string_view name) {
  if (std::ranges::find(names, name) == names.end()) names.emplace_back(name);
}

// PEFT compares whole parts of names for targets, and only letters for modules that are trained
// whole: there "norm" is input_layernorm too.
enum class Ends { kParts, kLetters };

// What finds these modules and no others by the end of their names: "q_proj", or "attn.c_proj"
// where others end in "c_proj" too.
std::vector<std::string> suffixes(const Family& family, const std::vector<const Module*>& wanted,
                                  Ends ends, std::int64_t experts) {
  const auto full_name = [&](const Module& module) {
    return fmt::format("{}{}", module.outside_prefix ? "" : family.prefix, module.theirs);
  };
  const auto finds_others = [&](std::string_view end) {
    for (const auto modules : family.modules) {
      for (const Module& other : modules) {
        if (is_one_of(wanted, other)) continue;
        const std::string name = full_name(other);
        if (!name.ends_with(end)) continue;
        const bool at_part = name.size() == end.size() || name[name.size() - end.size() - 1] == '.';
        if (ends == Ends::kLetters || at_part) return true;
      }
    }
    return false;
  };
  std::vector<std::string> names;
  for (const Module* module : wanted) {
    const std::string full = full_name(*module);
    std::size_t begin = full.rfind('.') + 1;
    while (begin > 0 && finds_others(std::string_view(full).substr(begin))) {
      begin = begin < 2 ? 0 : full.rfind('.', begin - 2) + 1;
    }
    // "{}.gate_proj" is an expert's: the names are those with each number.
    const std::string end = full.substr(begin);
    const bool numbered = is_of_one_expert(module->part) && end.starts_with("{}");
    for (std::int64_t e = 0; e < (numbered ? experts : 1); ++e)
      add_once(names, with_number(end, e));
    if (!module->in_memory.empty() && ends == Ends::kLetters) add_once(names, module->in_memory);
  }
  return names;
}

// The name of a text model's tensor or module inside a model of several parts, in memory.
std::string inside_parts(std::string name) {
  constexpr std::string_view kModel = "model.";
  if (name.starts_with(kModel)) name.insert(kModel.size(), "language_model.");
  return name;
}

// Finds modules of the text part alone: other parts have some of the same names.
std::string pattern_of_text(const std::vector<std::string>& suffixes) {
  std::string any;
  for (const std::string& suffix : suffixes) {
    any += any.empty() ? "" : "|";
    for (const char c : suffix) any += c == '.' ? std::string("\\.") : std::string(1, c);
  }
  return fmt::format(R"((?:.*\.)?language_model\.(?:.*\.)?(?:{}))", any);
}

class Builder {
 public:
  Builder(const Family& family, const ModelWeights& model, const AdapterWeights& adapter)
      : family_(family), model_(model), adapter_(adapter) {}

  AdapterMap build() {
    for (const AdapterKind& kind : adapter_.kinds) add_kind(kind);
    for (const std::string& module : adapter_.modules) add_module(module);
    return {std::move(map_), config()};
  }

 private:
  std::string in_base(std::string name) const {
    return adapter_.base_has_parts ? inside_parts(std::move(name)) : name;
  }
  std::string name_of(const Module& module, std::int64_t block) const {
    return kAdapterRoot + in_base(fmt::format("{}{}", module.outside_prefix ? "" : family_.prefix,
                                              with_number(module.theirs, block)));
  }

  void add_kind(const AdapterKind& kind) {
    const std::string ours = std::string(kBlock) + kind.site;
    bool found = false;
    for (std::int64_t block = 0; block < adapter_.num_blocks; ++block) {
      if (kind.experts > 0 && !model_.has_experts(block)) continue;
      const InLayers layers = model_.has_experts(block) ? InLayers::kWithExperts : InLayers::kDense;
      for (const Module* module : modules_of(family_, ours, layers)) {
        const std::string own = target_of(kind.site, module->part, adapter_.gated);
        const bool is_whole = kind.rows == kind.site_rows && kind.experts == 0;
        if (own != kind.target && !is_whole) continue;
        if (kind.experts > 0 && !is_of_one_expert(module->part)) continue;
        found = true;
        if (std::ranges::find(targets_, module) == targets_.end()) targets_.push_back(module);
        kind.experts > 0 ? add_pairs(kind, *module, block) : add_pair(kind, *module, block);
      }
    }
    if (found) return;
    if (kind.experts > 0) {
      throw UsageError(
          "models of type {} store all experts in one tensor, so PEFT has no module for an adapter "
          "of {}; export with --merge",
          family_.model_type, kind.target);
    }
    throw UsageError(
        "models of type {} store {} as one matrix, so PEFT has no place for an adapter of {}; "
        "export with --merge",
        family_.model_type, kind.site, kind.target);
  }

  void add_pair(const AdapterKind& kind, const Module& module, std::int64_t block) {
    const std::string ours = with_number(kBlock, block) + kind.target;
    const std::string theirs = name_of(module, block);
    const int a = add_ours({ours + ".lora_a", {adapter_.rank, kind.inputs}});
    const int b = add_ours({ours + ".lora_b", {kind.rows, adapter_.rank}});
    const std::int64_t numel = adapter_.rank * kind.inputs;
    map_.theirs.push_back({theirs + ".lora_A.weight", {adapter_.rank, kind.inputs}});
    map_.links.push_back({a, last_theirs(), {0, 0, {{numel, 1, 1}}}});
    // B's rows are those of the site's matrix.
    NamedShape rows;
    const auto boxes =
        boxes_of(family_, model_, {kind.site, {kind.site_rows, adapter_.rank}}, module, rows.shape);
    map_.theirs.push_back({theirs + ".lora_B.weight", rows.shape});
    for (StridedBox box : boxes) {
      box.to -= kind.first_row * adapter_.rank;
      map_.links.push_back({b, last_theirs(), std::move(box)});
    }
  }

  // Each expert's: ours are one after another.
  void add_pairs(const AdapterKind& kind, const Module& module, std::int64_t block) {
    const std::string ours = with_number(kBlock, block) + kind.target;
    const std::int64_t r = adapter_.rank;
    const int a = add_ours({ours + ".lora_a", {kind.experts * r, kind.inputs}});
    const int b = add_ours({ours + ".lora_b", {kind.experts * kind.rows, r}});
    for (std::int64_t e = 0; e < kind.experts; ++e) {
      const std::string theirs = with_number(name_of(module, block), e);
      const auto add = [&](const char* end, int of, std::int64_t rows, std::int64_t columns) {
        const std::int64_t numel = rows * columns;
        map_.theirs.push_back({theirs + end, {rows, columns}});
        map_.links.push_back({of, last_theirs(), {e * numel, 0, {{numel, 1, 1}}}});
      };
      add(".lora_A.weight", a, r, kind.inputs);
      add(".lora_B.weight", b, kind.rows, r);
    }
  }

  void add_module(const std::string& name) {
    const WeightMap whole = weight_map(family_, model_, true);
    for (const Link& link : whole.links) {
      const NamedShape& ours = whole.ours[static_cast<std::size_t>(link.ours)];
      if (!is_of(ours.name, name)) continue;
      NamedShape theirs = whole.theirs[static_cast<std::size_t>(link.theirs)];
      theirs.name = kAdapterRoot + in_base(theirs.name);
      const auto found = std::ranges::find(map_.theirs, theirs.name, &NamedShape::name);
      const auto number = static_cast<int>(found - map_.theirs.begin());
      if (found == map_.theirs.end()) map_.theirs.push_back(theirs);
      map_.links.push_back({add_ours(ours), number, link.box});
    }
    auto rows = modules_of(family_, std::string(kBlock) + name);
    if (rows.empty()) rows = modules_of(family_, name);
    modules_.insert(modules_.end(), rows.begin(), rows.end());
    for (const Module* module : rows) add_name_in_memory(*module);
    if (name == "embedding.token" && adapter_.tied) add_tied_head();
  }

  // The same tensors again, by another name of the module.
  void add_name_in_memory(const Module& module) {
    if (module.in_memory.empty()) return;
    const std::string in_files = name_of(module, 0) + ".";
    for (std::size_t i = 0, count = map_.theirs.size(); i < count; ++i) {
      NamedShape theirs = map_.theirs[i];
      if (!theirs.name.starts_with(in_files)) continue;
      theirs.name = fmt::format("{}{}.{}", kAdapterRoot, module.in_memory,
                                theirs.name.substr(in_files.size()));
      repeat(static_cast<int>(i), std::move(theirs));
    }
  }

  void repeat(int number, NamedShape theirs) {
    map_.theirs.push_back(std::move(theirs));
    for (std::size_t i = 0, count = map_.links.size(); i < count; ++i) {
      if (map_.links[i].theirs != number) continue;
      map_.links.push_back({map_.links[i].ours, last_theirs(), map_.links[i].box});
    }
  }

  // The embedding, which was added last, once more under the head's name.
  void add_tied_head() {
    const auto rows = modules_of(family_, "head");
    const Link embedding = map_.links.back();
    NamedShape theirs = map_.theirs[static_cast<std::size_t>(embedding.theirs)];
    theirs.name = name_of(*rows.at(0), 0) + ".weight";
    map_.theirs.push_back(std::move(theirs));
    map_.links.push_back({embedding.ours, last_theirs(), embedding.box});
    modules_.push_back(rows[0]);
    add_name_in_memory(*rows[0]);
  }

  // "block.3.norm1.weight" is of module "norm1".
  static bool is_of(std::string_view parameter, std::string_view module) {
    parameter = parameter.substr(0, parameter.rfind('.'));
    if (parameter.starts_with("block.")) parameter.remove_prefix(parameter.find('.', 6) + 1);
    return parameter == module;
  }

  int add_ours(const NamedShape& ours) {
    const auto found = std::ranges::find(map_.ours, ours.name, &NamedShape::name);
    if (found != map_.ours.end()) return static_cast<int>(found - map_.ours.begin());
    map_.ours.push_back(ours);
    return static_cast<int>(map_.ours.size()) - 1;
  }
  int last_theirs() const { return static_cast<int>(map_.theirs.size()) - 1; }

  std::string config() const {
    nlohmann::ordered_json json = {
        {"base_model_name_or_path", adapter_.base},
        {"bias", "none"},
        {"fan_in_fan_out", is_transposed(family_)},
        {"inference_mode", true},
        {"init_lora_weights", true},
        {"lora_alpha", alpha()},
        {"lora_dropout", adapter_.dropout},
        {"modules_to_save", nullptr},
        {"peft_type", "LORA"},
        {"r", adapter_.rank},
        {"target_modules", suffixes(family_, targets_, Ends::kParts, model_.experts)},
        {"task_type", "CAUSAL_LM"},
        {"use_rslora", adapter_.rslora}};
    if (adapter_.base_has_parts) {
      json["target_modules"] = pattern_of_text(json["target_modules"]);
    }
    if (!modules_.empty()) json["modules_to_save"] = suffixes(family_, modules_, Ends::kLetters, 0);
    return json.dump(2) + "\n";
  }

  // PEFT's is a whole number; servers that check it take no 16.0.
  nlohmann::ordered_json alpha() const {
    constexpr double kMostWhole = 0x1p53;
    const bool is_whole =
        adapter_.alpha < kMostWhole && std::floor(adapter_.alpha) == adapter_.alpha;
    if (is_whole) return static_cast<std::int64_t>(adapter_.alpha);
    return adapter_.alpha;
  }

  const Family& family_;
  const ModelWeights& model_;
  const AdapterWeights& adapter_;
  WeightMap map_;
  std::vector<const Module*> targets_, modules_;
};

}  // namespace

std::string target_of(std::string_view ours, Part part, bool gated) {
  switch (part) {
    case Part::kQuery:
      return "attention.query";
    case Part::kKey:
      return "attention.key";
    case Part::kValue:
      return "attention.value";
    case Part::kGate:
      return "mlp.gate";
    case Part::kUp:
      return "mlp.up";
    case Part::kExpertGate:
      return "moe.experts.gate";
    case Part::kStackedGateUp:
    case Part::kPairedGateUp:
    case Part::kTurnedGateUp:
      return "moe.experts.gate_up";
    default:
      return ours == "mlp.up" && gated ? "mlp.gate_up" : std::string(ours);
  }
}

AdapterMap adapter_map(const Family& family, const ModelWeights& model,
                       const AdapterWeights& adapter) {
  return Builder(family, model, adapter).build();
}

}  // namespace sherd::huggingface
