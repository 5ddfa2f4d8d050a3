/// Maps elements of a Hugging Face folder's tensors ("theirs") to elements of our parameters
/// ("ours").
///
/// Every element of ours and of theirs is in exactly one box. Boxes express that ours stacks
/// matrices of theirs (query, key and value; gate and up), that matrices are transposed, and that
/// rows are permuted within each head. So no whole tensor is ever held for the conversion.
///
/// Partial rotary positions: in each head, ours rotates pairs (j, j + K/2). Theirs rotates pairs
/// (j, j + r/2) among the first r of K elements, or (2 j, 2 j + 1). So rows of query and key, and
/// weights of norms per head, are permuted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/huggingface/family.h"
#include "engine/huggingface/strided_box.h"

namespace sherd::huggingface {

struct NamedShape {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t numel() const;
  bool operator==(const NamedShape&) const = default;
};

/// The properties of a model that names and rows depend on.
struct ModelWeights {
  std::vector<NamedShape> parameters;  ///< ours, in the model's order
  std::int64_t query_heads = 0, kv_heads = 0, head_width = 0;
  std::int64_t rotary_width = 0;  ///< number of rotated elements in a head
  std::int64_t rotated_tail = 0;  ///< the same with latent attention, at the end of a head
  std::int64_t experts = 0;       ///< in a layer that has any
  bool upright_experts = false;   ///< kPairedGateUp and kTurnedExperts are transposed: codes
  bool stacks_experts = false;    ///< the folder has the tensors that Module::stacked names
  /// Embedding and head may have rows that the folder lacks, for tokens added by the run.
  bool adds_tokens = false;

  bool has_experts(std::int64_t layer) const;
};

struct Link {
  int ours = 0, theirs = 0;
  StridedBox box;  ///< `to` counts in ours, `from` in theirs
};

struct WeightMap {
  std::vector<NamedShape> ours, theirs;
  std::vector<Link> links;  ///< ascending in ours
};

/// `with_prefix`: whether names have the family's prefix.
/// Errors   UsageError if the family has no name for a parameter, because the model's settings
///          differ.
WeightMap weight_map(const Family& family, const ModelWeights& model, bool with_prefix);

/// The same tensors of theirs, made only from `ours`; elements without a source in `ours` are
/// written as zero.
WeightMap map_of_part(WeightMap whole, const std::vector<NamedShape>& ours);

/// The rows of a family's table for a module of ours: the first one and, if that is only a part of
/// the module, the rows of the other parts. Of one kind of layer, or of any.
std::vector<const Module*> modules_of(const Family& family, const std::string& ours);
std::vector<const Module*> modules_of(const Family& family, const std::string& ours,
                                      InLayers layers);

/// A module of theirs that holds a matrix of ours, or some of its rows.
struct MatrixModule {
  std::string name;  ///< "model.layers.0.self_attn.q_proj"
  const Module* module = nullptr;
  int ours = 0;              ///< index into ModelWeights::parameters
  std::int64_t expert = -1;  ///< whose it is; -1: no expert's

  /// Whether `other` is its name, or its name in some versions of transformers.
  bool is_called(std::string_view other) const {
    return other == name || other == module->in_memory;
  }
};
std::vector<MatrixModule> matrices_of(const Family& family, const ModelWeights& model);

/// Rows of a matrix of ours that one expert's module holds.
struct ExpertRows {
  std::int64_t first = 0, count = 0;
};
bool is_of_one_expert(Part part);
/// `rows`: of ours, for all experts.
ExpertRows rows_of_expert(Part part, std::int64_t rows, std::int64_t experts, std::int64_t expert);

/// The boxes of `ours` in a module of theirs. `ours` is a matrix with as many rows as the module's
/// own and any number of columns; it isn't transposed. Sets the shape of theirs.
std::vector<StridedBox> boxes_of(const Family& family, const ModelWeights& model,
                                 const NamedShape& ours, const Module& module,
                                 std::vector<std::int64_t>& theirs);

/// "layers.{}.x" for block 3: "layers.3.x".
std::string with_number(std::string_view pattern, std::int64_t number);

}  // namespace sherd::huggingface
