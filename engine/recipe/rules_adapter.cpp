// Adapter targets: the family's names are converted to ours, and must exist in this model.
#include <algorithm>
#include <optional>

#include "engine/huggingface/adapter_map.h"
#include "engine/model/adapter.h"
#include "engine/recipe/model_from.h"
#include "engine/recipe/resolution.h"
#include "engine/recipe/suggest.h"
#include "optim/optimizer.h"

namespace sherd::engine {
namespace {

using huggingface::Family;
using huggingface::Module;
using model::AdapterTarget;

constexpr std::string_view kTargets = "adapter.targets";
constexpr std::string_view kModules = "adapter.modules_to_save";
constexpr std::string_view kRank = "adapter.rank";
constexpr std::string_view kAddedTokens = "model.add_special_tokens";
constexpr std::string_view kAll = "all-linear";
constexpr std::string_view kBlock = "block.{}.";

using Names = std::vector<std::string>;

bool contains(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}
void add_once(Names& names, std::string name) {
  if (!contains(names, name)) names.push_back(std::move(name));
}

// A module of the family, as far as adapters are concerned.
struct FamilyModule {
  std::string_view theirs;  ///< "layers.{}.self_attn.q_proj"
  std::string ours;         ///< "attention.qkv"
  std::string target;       ///< "attention.query"; empty: no matrix of a block
  bool is_part = false;

  std::string_view name() const { return theirs.substr(theirs.rfind('.') + 1); }
  // As PEFT finds them: "q_proj", or more of the end.
  bool is_called(std::string_view name) const {
    return theirs == name || (theirs.size() > name.size() && theirs.ends_with(name) &&
                              theirs[theirs.size() - name.size() - 1] == '.');
  }
};

std::vector<FamilyModule> modules_of(const Family& family, const model::ModelShape& shape) {
  std::vector<FamilyModule> modules;
  const std::vector<AdapterTarget> targets = model::possible_targets(shape);
  for (const std::string& ours : model::possible_modules(shape)) {
    auto rows = huggingface::modules_of(family, std::string(kBlock) + ours);
    if (rows.empty()) rows = huggingface::modules_of(family, ours);
    for (const Module* row : rows) {
      FamilyModule module{row->theirs, ours,
                          huggingface::target_of(ours, row->part, shape.gated())};
      module.is_part = module.target != ours && rows.size() > 1;
      const bool is_matrix = std::ranges::any_of(
          targets, [&](const AdapterTarget& target) { return target.name == module.target; });
      if (!is_matrix) module.target.clear();
      modules.push_back(std::move(module));
    }
  }
  return modules;
}

// Whether each layer has a dense feed-forward layer, or each a shared expert.
bool has_equal_mlps(const Recipe& recipe) {
  const MoeKeys& moe = recipe.moe;
  return moe.num_experts == 0 ||
         (moe.shared_ffn_hidden_size > 0 && moe.layers.find('0') == std::string::npos);
}

// The model's names: those of its family, followed by ours.
class ModelNames {
 public:
  explicit ModelNames(const Recipe& recipe)
      : shape_(shape_of(recipe)), has_experts_(recipe.moe.num_experts > 0) {
    shape_.num_layers = std::ssize(shape_.layers_of_each_kind());
    shape_.adapter = {};
    for (const AdapterTarget& target : model::possible_targets(shape_)) {
      targets_.push_back(target.name);
    }
    modules_ = model::possible_modules(shape_);
    if (const Family* family = family_of(recipe)) theirs_ = modules_of(*family, shape_);
  }

  const model::ModelShape& shape() const { return shape_; }

  // The family's name, or ours.
  std::string name_of_module(const std::string& ours) const {
    const auto found = std::ranges::find(theirs_, ours, &FamilyModule::ours);
    return found == theirs_.end() ? ours : std::string(found->name());
  }

  Names targets_called(std::string_view name) const {
    if (contains(targets_, name)) return {std::string(name)};
    Names found;
    for (const FamilyModule& module : theirs_) {
      const bool meant = name == kAll || module.is_called(name);
      if (meant && !module.target.empty()) add_once(found, module.target);
    }
    if (name == kAll && found.empty()) {
      found = targets_;
      const bool gated = shape_.gated();
      std::erase_if(found, [gated](const std::string& target) {
        return target == "attention.qkv" || (gated && target == "mlp.gate_up");
      });
    }
    if (name == kAll && has_experts_) {
      std::erase_if(found,
                    [](const std::string& target) { return !target.starts_with("attention."); });
    }
    return found;
  }
  Names modules_called(std::string_view name) const {
    if (contains(modules_, name)) return {std::string(name)};
    Names found;
    for (const FamilyModule& module : theirs_) {
      if (module.is_called(name) && !module.is_part) add_once(found, module.ours);
    }
    return found;
  }

  std::string known_targets() const {
    Names names;
    for (const FamilyModule& module : theirs_) {
      if (!module.target.empty()) add_once(names, std::string(module.name()));
    }
    return listed(names.empty() ? targets_ : names);
  }
  std::string known_modules() const {
    Names names;
    for (const FamilyModule& module : theirs_) {
      if (!module.is_part) add_once(names, std::string(module.name()));
    }
    return listed(names.empty() ? modules_ : names);
  }

 private:
  static std::string listed(const Names& names) {
    std::vector<std::string_view> views(names.begin(), names.end());
    return joined(views, ", ", " and ");
  }

  model::ModelShape shape_;
  bool has_experts_;
  Names targets_, modules_;
  std::vector<FamilyModule> theirs_;
};

// Our name for what the user wrote. Reports a problem and returns nothing if the model lacks it.
std::optional<Names> translated(Resolution& recipe, const ModelNames& names, bool targets) {
  const AdapterKeys& adapter = recipe.values().adapter;
  const std::string_view key = targets ? kTargets : kModules;
  Names all;
  for (const std::string& name : targets ? adapter.targets : adapter.modules_to_save) {
    const Names found = targets ? names.targets_called(name) : names.modules_called(name);
    if (found.empty()) {
      recipe.refuse({key, "model.from"}, "{}: \"{}\" names no {} of this model; it has {}.", key,
                    name, targets ? "matrix" : "whole module",
                    targets ? names.known_targets() : names.known_modules());
      return std::nullopt;
    }
    for (const std::string& ours : found) add_once(all, ours);
  }
  return all;
}

// The module whose matrix has the target's rows.
std::string module_of_target(const AdapterTarget& target) {
  switch (target.site) {
    case model::SiteId::kQkv:
      return "attention.qkv";
    case model::SiteId::kUp:
      return "mlp.up";
    case model::SiteId::kExpertsUp:
      return "moe.experts.up";
    default:
      return target.name;
  }
}

// Each matrix is trained by at most one adapter, or in full.
bool check_overlaps(Resolution& recipe, const std::vector<AdapterTarget>& targets) {
  const AdapterKeys& adapter = recipe.values().adapter;
  for (std::size_t i = 1; i < targets.size(); ++i) {
    const AdapterTarget &a = targets[i - 1], &b = targets[i];
    if (a.site != b.site || b.first_row >= a.first_row + a.rows) continue;
    recipe.refuse({kTargets}, "{}: {} and {} are adapters of the same rows; keep one.", kTargets,
                  a.name, b.name);
    return false;
  }
  for (const AdapterTarget& target : targets) {
    const std::string site = module_of_target(target);
    if (!contains(adapter.modules_to_save, site)) continue;
    recipe.refuse({kModules, kTargets},
                  "{} has {}, which is trained whole, and {} an adapter for {}; keep one.",
                  kModules, site, kTargets, target.name);
    return false;
  }
  return true;
}

void check_rank(Resolution& recipe, const std::vector<AdapterTarget>& targets) {
  const std::int64_t rank = recipe.values().adapter.rank;
  for (const AdapterTarget& target : targets) {
    const std::int64_t most = std::min(target.rows, target.inputs);
    if (rank <= most) continue;
    return recipe.refuse({kRank, kTargets},
                         "adapter.rank is {}, above the width of {} ({} x {}). Use {} or less.",
                         rank, target.name, target.rows, target.inputs, most);
  }
}

// Rows of added tokens are useless until they are trained.
void check_added_tokens(Resolution& recipe, const ModelNames& names) {
  if (recipe.values().model.add_special_tokens.empty()) return;
  std::string missing, all;
  for (const char* module : {"embedding.token", "head"}) {
    if (names.shape().tied && module == std::string_view("head")) continue;
    const std::string name = names.name_of_module(module);
    all += (all.empty() ? "" : ", ") + name;
    if (contains(recipe.values().adapter.modules_to_save, module)) continue;
    missing += (missing.empty() ? "" : " and ") + name;
  }
  if (missing.empty()) return;
  recipe.refuse({kModules, kAddedTokens},
                "{} adds rows to {}, which {} doesn't have, so they would never be trained. Set "
                "{}: [{}].",
                kAddedTokens, missing, kModules, kModules, all);
}

// Muon and Dion form whole matrices from equal parts. Copies of key/value heads make the parts of the fused
// matrix's adapter unequal.
void check_whole_matrices(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const optim::OptimizerType type = values.optimizer.type;
  if (type != optim::OptimizerType::kMuon && type != optim::OptimizerType::kDion) return;
  if (values.parallelism.tensor_parallel_degree <= values.model.num_kv_heads) return;
  if (!contains(values.adapter.targets, "attention.qkv")) return;
  recipe.refuse({kTargets, "optimizer.type"},
                "{} has attention.qkv, which {} can't update where tensor ranks hold copies of "
                "key/value heads. Use attention.query, .key and .value, or another optimizer.",
                kTargets, type == optim::OptimizerType::kMuon ? "muon" : "dion");
}

// An adapter has one shape in all layers.
void check_mixtures(Resolution& recipe) {
  const Recipe& values = recipe.values();
  for (const std::string& target : values.adapter.targets) {
    if (!target.starts_with("mlp.") || has_equal_mlps(values)) continue;
    return recipe.refuse({kTargets, "moe.num_experts"},
                         "{} has {}, but not all layers of this model have a dense feed-forward "
                         "layer or a shared expert of one width. Name matrices of attention or of "
                         "experts (moe.experts.gate, .up, .down).",
                         kTargets, target);
  }
}

void note_frozen_experts(Resolution& recipe) {
  const Recipe& values = recipe.values();
  if (values.moe.num_experts == 0 || recipe.request().is_kept) return;
  if (std::ranges::any_of(values.adapter.targets, model::is_target_of_experts)) return;
  recipe.note(
      "adapter: experts and routers stay frozen; adapter.targets trains experts if it names their "
      "matrices.");
}

// What adapters of experts' matrices aren't combined with yet.
void check_targets_of_experts(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const auto found = std::ranges::find_if(values.adapter.targets, model::is_target_of_experts);
  if (found == values.adapter.targets.end()) return;
  if (values.adapter.dropout > 0.0) {
    recipe.refuse({"adapter.dropout", kTargets},
                  "adapter.dropout is {}, but {} has {}, and adapters of experts have no dropout "
                  "yet. Set adapter.dropout: 0, or leave these targets out.",
                  values.adapter.dropout, kTargets, *found);
  }
  const auto refuse_degree = [&](std::string_view key, std::int64_t degree) {
    if (degree == 1) return;
    recipe.refuse({key, kTargets},
                  "{} is {}, but {} has {}, and such ranks can't divide adapters of experts yet. "
                  "Use expert ranks, data ranks or pipeline ranks.",
                  key, degree, kTargets, *found);
  };
  refuse_degree("parallelism.tensor_parallel_degree", values.parallelism.tensor_parallel_degree);
  refuse_degree("parallelism.context_parallel_degree", values.parallelism.context_parallel_degree);
}

}  // namespace

void check_adapter(Resolution& recipe) {
  AdapterKeys& adapter = recipe.values().adapter;
  if (adapter.type == AdapterChoice::kNone) {
    if (adapter.base_dtype == BaseDType::kNf4) {
      recipe.refuse({"adapter.base_dtype", "adapter.type"},
                    "adapter.base_dtype is nf4, but adapter.type is none, so all weights are "
                    "trained. Set adapter.type: lora, or leave it out.");
    }
    return;
  }
  if (adapter.targets.empty()) {
    return recipe.refuse({kTargets}, "{} is empty; name a matrix, or write [{}].", kTargets, kAll);
  }
  const ModelNames names(recipe.values());
  const auto targets = translated(recipe, names, true);
  const auto modules = translated(recipe, names, false);
  if (!targets || !modules) return;
  adapter.targets = *targets;
  adapter.modules_to_save = *modules;
  if (contains(*modules, "embedding.position") && !contains(*modules, "embedding.token")) {
    return recipe.refuse({kModules},
                         "{} has embedding.position without embedding.token; they are trained "
                         "together.",
                         kModules);
  }
  check_added_tokens(recipe, names);
  std::vector<AdapterTarget> all = model::possible_targets(names.shape());
  std::erase_if(all, [&adapter](const AdapterTarget& target) {
    return !contains(adapter.targets, target.name);
  });
  if (check_overlaps(recipe, all)) check_rank(recipe, all);
  check_whole_matrices(recipe);
  check_mixtures(recipe);
  check_targets_of_experts(recipe);
  note_frozen_experts(recipe);
  if (recipe.values().checkpoint.init_from.empty()) {
    recipe.refuse({"adapter.type", "model.from"},
                  "adapter.type is lora, but there is no model that it is for. Set model.from to a "
                  "Hugging Face folder, or checkpoint.init_from to a checkpoint.");
  }
}

}  // namespace sherd::engine
