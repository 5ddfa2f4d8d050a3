/// What is known of a family of models: how Hugging Face's files call its tensors and its settings.
///
/// Families are data, one file for each group in families/; nothing else names one. A family's table
/// of tensors names modules: "block.{}.attention.qkv" stands for .weight and, where the model has it,
/// .bias; {} is the block's number. Rows for modules that a model doesn't have aren't used.
#pragma once

#include <span>
#include <string_view>

namespace sherd::huggingface {

class ConfigReader;
class FamilyWriter;

/// Which rows of our tensor a module of theirs holds.
enum class Part {
  kWhole,
  kQuery,  ///< of attention.qkv
  kKey,
  kValue,
  kQkv,        ///< all three one after the other, as ours
  kQkvByHead,  ///< [heads, 3, head width]: as many key as query heads
  kGate,       ///< of mlp.up of a gated model
  kUp,
  kHeads,       ///< all, row by row of each head (weights of QK-norms)
  kHeadMatrix,  ///< the same as [heads, head width]
  kEachHead,    ///< the same in a tensor for each head: "q_layernorm.norms.3.weight"
};

struct Module {
  std::string_view ours;
  std::string_view theirs;
  Part part = Part::kWhole;
  bool transposed = false;       ///< theirs is [inputs, outputs]
  bool outside_prefix = false;   ///< the family's prefix doesn't stand before it
  std::string_view each_head{};  ///< of kEachHead: "norms.{}", by the head's number
  std::string_view
      in_memory{};  ///< what some versions of transformers call it; their files say `theirs`
};

/// A setting that is a value of the recipe.
struct ConfigKey {
  std::string_view theirs;
  std::string_view ours;       ///< "model.num_layers"
  std::string_view missing{};  ///< what it is where config.json hasn't got it; empty: an error
};
/// A setting of words.
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
/// A setting that must have this value (or be missing): with another, it is a model that we haven't.
struct Demand {
  std::string_view theirs;
  std::string_view value;
};

/// Another name of a setting, which counts before it.
struct Alias {
  std::string_view name, theirs;
};

struct Family {
  std::string_view model_type{};
  std::string_view architecture{};  ///< the class that config.json names
  std::string_view prefix{};        ///< before the names of all modules but the head; files of the
                                    ///< model without its head have none
  std::span<const std::span<const Module>> modules{};
  std::span<const std::string_view> buffers{};  ///< of old files, to be ignored
  std::span<const Fixed> fixed{};
  std::span<const std::span<const ConfigKey>> keys{};
  std::span<const ConfigWord> words{};
  std::span<const Demand> demands{};
  std::span<const Alias> aliases{};
  std::span<const std::string_view> harmless{};  ///< settings without a meaning for us, not listed
  void (*more)(ConfigReader&) = nullptr;         ///< what tables can't say
  /// The same for a model that a recipe describes; none: no model is written as this family, as long as no
  /// folder of it began the run.
  void (*write)(FamilyWriter&) = nullptr;
  /// How transformers 4 calls what transformers 5 has in rope_parameters.
  std::string_view old_theta = "rope_theta", old_fraction = "partial_rotary_factor";
  bool two_rotary_tables = false;   ///< windowed layers have one of their own
  bool interleaved_rotary = false;  ///< elements 2 j and 2 j + 1 of a head are turned together
};

/// A model of several parts, one of them text (text_part.h).
struct Whole {
  std::string_view model_type{};
  std::span<const std::string_view> others{};  ///< how names of the other parts' tensors begin
};
std::span<const Whole> models_of_parts();

/// A kind of model that isn't read, and what of it is missing here.
struct Lacking {
  std::string_view model_type, why;
};
std::span<const Lacking> lacking_families();

/// nullptr: not known.
const Family* find_family(std::string_view model_type);
std::span<const Family* const> all_families();

}  // namespace sherd::huggingface
