/// Adapters as PEFT stores them: maps elements of PEFT's tensors to ours, and writes
/// adapter_config.json.
///
///   ours                              theirs: base_model.model. + the module's name
///   block.0.attention.query.lora_a    ...layers.0.self_attn.q_proj.lora_A.weight   [r, inputs]
///   block.0.attention.query.lora_b    ...layers.0.self_attn.q_proj.lora_B.weight   [rows, r]
///   block.0.moe.experts.gate.lora_a   ...layers.0.mlp.experts.E.gate_proj.lora_A.weight, for each
///                                     expert: r rows of ours
///   head.weight (trained whole)       base_model.model.lm_head.weight
///
/// A's rows and columns are in our order. B's rows are in the order of the module's rows: stacked,
/// by head, or in the family's order of rotary pairs. B is never transposed, even if the family
/// transposes its matrices.
///
/// If the family stores query, key and value as three matrices, an adapter for all three becomes
/// three adapters with the same A. If the family stores one matrix, an adapter for only a part of
/// it is refused. A trained embedding that is tied to the head is stored for both: PEFT makes a
/// copy for each. If versions of transformers name a trained module differently, it is stored under
/// each name; PEFT uses the one that it finds.
#pragma once

#include <string>
#include <vector>

#include "engine/huggingface/weight_map.h"

namespace sherd::huggingface {

/// A kind of adapter, the same in all blocks.
struct AdapterKind {
  std::string target;  ///< "attention.query"
  std::string site;    ///< "attention.qkv": the adapted matrix
  std::int64_t site_rows = 0, first_row = 0, rows = 0, inputs = 0;
  std::int64_t experts = 0;  ///< if above 0, rows are those of each expert's matrix
};

struct AdapterWeights {
  std::vector<AdapterKind> kinds;
  std::vector<std::string> modules;  ///< fully trained modules, by our names
  std::int64_t num_blocks = 0;
  std::int64_t rank = 0;
  double alpha = 0.0, dropout = 0.0;
  bool rslora = false;
  bool gated = false, tied = false;
  std::string base;  ///< folder of the base model
  /// The base has parts besides the text model (text_part.h), which PEFT opens, too.
  bool base_has_parts = false;
};

/// The target that matches a family's module: "attention.query" for a table row of attention.qkv
/// with kQuery.
std::string target_of(std::string_view ours, Part part, bool gated);

struct AdapterMap {
  WeightMap weights;
  std::string config;  ///< contents of adapter_config.json
};
/// `model` has all parameters of the model; the trained ones are used.
/// Errors   UsageError for adapters of this family that PEFT can't store.
AdapterMap adapter_map(const Family& family, const ModelWeights& model,
                       const AdapterWeights& adapter);

}  // namespace sherd::huggingface
