/// A family of models: the names of its tensors and settings in Hugging Face's files.
///
/// Families are data, one file for each group in families/; no other code names one. A family's
/// table of tensors names modules: "block.{}.attention.qkv" means .weight and, if the model has it,
/// .bias; {} is the block's number. Rows for modules that a model doesn't have aren't used.
#pragma once

#include <span>
#include <string_view>

namespace sherd::huggingface {

class ConfigReader;
class FamilyWriter;

/// Which rows of our tensor a Hugging Face module holds.
enum class Part {
  kWhole,
  kQuery,  ///< of attention.qkv
  kKey,
  kValue,
  kLatentQuery,  ///< rows of each head, of which the last ones are rotated (layer_shapes.h)
  kLatentKey,    ///< all rows, of which the last ones are rotated
  kQkv,          ///< all three, one after the other, as ours
  kQkvByHead,    ///< [heads, 3, head width]: as many key heads as query heads
  kGate,         ///< of mlp.up of a gated model
  kUp,
  kExpertGate,     ///< of moe.experts.up, a module for each expert
  kExpertUp,       ///< the same
  kExpertDown,     ///< of moe.experts.down, the same
  kStackedGateUp,  ///< [experts, gate and up, width]: all experts in one tensor
  kStackedDown,    ///< [experts, width, expert width]
  kPairedGateUp,   ///< [experts, width, gate and up by turns]: gpt-oss; or, as codes, the transpose
  kTurnedGateUp,   ///< [experts, width, gate and up]
  kTurnedExperts,  ///< [experts, columns, rows of one]; or, as codes, the transpose
  kHeads,          ///< all, row by row of each head (weights of QK-norms)
  kHeadMatrix,     ///< the same as [heads, head width]
  kEachHead,       ///< the same with one tensor per head: "q_layernorm.norms.3.weight"
};

/// Layers in which a module is what its row says.
enum class InLayers { kAll, kDense, kWithExperts };

struct Module {
  std::string_view ours;
  std::string_view theirs;
  Part part = Part::kWhole;
  bool transposed = false;       ///< theirs is [inputs, outputs]
  bool outside_prefix = false;   ///< its name doesn't begin with the family's prefix
  std::string_view each_head{};  ///< for kEachHead: "norms.{}", with the head's number
  /// In files of transformers 5 that keep its form in memory: the name of the tensor of all experts
  /// (gate and up in one), or of a router whose name differs there.
  std::string_view stacked{};
  /// The whole name of its bias, where that isn't "NAME.bias"; and in files with stacked experts.
  std::string_view bias{}, stacked_bias{};
  bool bare = false;         ///< its tensor has the module's name, without ".weight"
  bool bias_in_row = false;  ///< that bias is [1, rows]
  InLayers layers = InLayers::kAll;
  /// Its name in memory in some versions of transformers; files use `theirs`.
  std::string_view in_memory{};
};

/// A setting that becomes a recipe value.
struct ConfigKey {
  std::string_view theirs;
  std::string_view ours;       ///< "model.num_layers"
  std::string_view missing{};  ///< the value if config.json lacks the key; empty: an error
};
/// A setting whose word becomes a recipe value.
struct ConfigWord {
  std::string_view theirs;
  std::string_view word;
  std::string_view ours;
  std::string_view value;
};
/// A value that all models of a family have.
struct Fixed {
  std::string_view ours;
  std::string_view value;
};
/// A setting that must have this value or be missing; other values are unsupported models.
struct Demand {
  std::string_view theirs;
  std::string_view value;
};

/// Another name of a setting, which takes precedence.
struct Alias {
  std::string_view name, theirs;
};

struct Family {
  std::string_view model_type{};
  std::string_view architecture{};  ///< the class that config.json names
  std::string_view prefix{};        ///< of the names of all modules except the head; files of the
                                    ///< model without its head have no prefix
  std::span<const std::span<const Module>> modules{};
  std::span<const std::string_view> buffers{};  ///< of old files, to be ignored
  std::span<const Fixed> fixed{};
  std::span<const std::span<const ConfigKey>> keys{};
  std::span<const ConfigWord> words{};
  std::span<const Demand> demands{};
  std::span<const Alias> aliases{};
  std::span<const std::string_view> harmless{};  ///< settings without meaning for us, not listed
  void (*more)(ConfigReader&) = nullptr;         ///< reads what tables can't express
  /// Writes the settings of a model that a recipe describes. Null: a model is exported as this
  /// family only if the run started from a folder of the family.
  void (*write)(FamilyWriter&) = nullptr;
  /// Names in transformers 4 of settings that transformers 5 has in rope_parameters.
  std::string_view old_theta = "rope_theta", old_fraction = "partial_rotary_factor";
  /// Type of exported folders, where transformers has the model under another one.
  std::string_view exported_as{};
  bool peft_takes_mlp_for_experts = false;  ///< adapters of mlp.* can't be in PEFT's form
  bool two_rotary_tables = false;           ///< windowed layers have their own table
  bool balances = true;             ///< router_aux_loss_coef is of a loss that the class computes
  bool interleaved_rotary = false;  ///< elements 2 j and 2 j + 1 of a head are rotated together
};

/// A model of several parts, one of them text (text_part.h).
struct Whole {
  std::string_view model_type{};
  std::span<const std::string_view> others{};  ///< prefixes of the other parts' tensor names
};
std::span<const Whole> models_of_parts();

/// An unsupported kind of model, and the feature that isn't supported.
struct Lacking {
  std::string_view model_type, why;
};
std::span<const Lacking> lacking_families();

/// nullptr: not known.
const Family* find_family(std::string_view model_type);
std::span<const Family* const> all_families();
/// Whether files may have Module::stacked instead of a module for each expert.
bool has_stacked_experts(const Family& family);

}  // namespace sherd::huggingface
