/// Adapters as PEFT stores them: which elements of its tensors are which of ours, and adapter_config.json.
///
///   ours                              theirs: base_model.model. + the module's name
///   block.0.attention.query.lora_a    ...layers.0.self_attn.q_proj.lora_A.weight   [r, inputs]
///   block.0.attention.query.lora_b    ...layers.0.self_attn.q_proj.lora_B.weight   [rows, r]
///   head.weight (trained whole)       base_model.model.lm_head.weight
///
/// A's rows and columns stand as ours. B's rows stand as the module's own do: stacked, by head, or in the
/// family's order of rotary pairs. B is never transposed, whatever the family does with matrices.
///
/// An adapter of all three of query, key and value becomes three where the family stores three matrices,
/// each with the same A. One of a part can't be stored where the family has one matrix: that is refused.
/// A trained embedding that is the head too is stored for both: PEFT gives each a copy of its own. A trained module
/// that versions of transformers call differently is stored under each name; PEFT takes the one that it finds.
#pragma once

#include <string>
#include <vector>

#include "engine/huggingface/weight_map.h"

namespace sherd::huggingface {

/// A kind of adapter: the same in all blocks.
struct AdapterKind {
  std::string target;  ///< "attention.query"
  std::string site;    ///< "attention.qkv", whose matrix has
  std::int64_t site_rows = 0, first_row = 0, rows = 0, inputs = 0;
};

struct AdapterWeights {
  std::vector<AdapterKind> kinds;
  std::vector<std::string> modules;  ///< that are trained whole, by our names
  std::int64_t num_blocks = 0;
  std::int64_t rank = 0;
  double alpha = 0.0, dropout = 0.0;
  bool rslora = false;
  bool gated = false, tied = false;
  std::string base;  ///< the folder that the adapter is for
};

/// The target that is exactly a family's module: "attention.query" for a row of attention.qkv with kQuery.
std::string target_of(std::string_view ours, Part part, bool gated);

struct AdapterMap {
  WeightMap weights;
  std::string config;  ///< text of adapter_config.json
};
/// `model` has the model's own parameters; of those the trained ones are taken.
/// Errors   UsageError for what PEFT can't store of this family.
AdapterMap adapter_map(const Family& family, const ModelWeights& model,
                       const AdapterWeights& adapter);

}  // namespace sherd::huggingface
