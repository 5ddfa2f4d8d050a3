/// Which elements of a Hugging Face folder's tensors are which elements of our parameters.
///
/// Every element of ours and of theirs is in exactly one box. Rows of theirs are stacked in ours
/// (query, key and value; gate and up), matrices are turned over, rows stand in another order within
/// each head: all of that is in the boxes, and nobody ever holds a whole tensor for it.
///
/// Partial rotary positions: of each head we turn pairs (j, j + K/2), their files pairs (j, j + r/2)
/// among the first r of K, or (2 j, 2 j + 1); so rows of query and key are in another order, and weights
/// of norms per head too.
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

/// A model as far as names and rows depend on it.
struct ModelWeights {
  std::vector<NamedShape> parameters;  ///< ours, in the model's order
  std::int64_t query_heads = 0, kv_heads = 0, head_width = 0;
  std::int64_t rotary_width = 0;  ///< of a head's elements, those that are turned
  /// Embedding and head may have rows that a folder lacks, of tokens that the run has added.
  bool adds_tokens = false;
};

struct Link {
  int ours = 0, theirs = 0;
  StridedBox box;  ///< `to` counts in ours, `from` in theirs
};

struct WeightMap {
  std::vector<NamedShape> ours, theirs;
  std::vector<Link> links;  ///< ascending in ours
};

/// Names with or without the family's prefix.
/// Errors   UsageError where the family has no name for a parameter: a model of other settings.
WeightMap weight_map(const Family& family, const ModelWeights& model, bool with_prefix);

/// The same tensors of theirs, made of `ours` alone: those that have no element of ours are zero where they are
/// written.
WeightMap map_of_part(WeightMap whole, const std::vector<NamedShape>& ours);

/// The rows of a family's table for a module of ours: the first one, and where that is a part of it,
/// those of the others.
std::vector<const Module*> modules_of(const Family& family, const std::string& ours);

/// A module of theirs that holds a matrix of ours, or rows of it.
struct MatrixModule {
  std::string name;  ///< "model.layers.0.self_attn.q_proj"
  const Module* module = nullptr;
  int ours = 0;  ///< index into ModelWeights::parameters

  /// By its name, or the one that some versions of transformers have.
  bool is_called(std::string_view other) const {
    return other == name || other == module->in_memory;
  }
};
std::vector<MatrixModule> matrices_of(const Family& family, const ModelWeights& model);

/// Where a module of theirs has the rows of `ours`, a matrix with as many rows as the module's own and
/// any columns; not turned over. Sets the shape of theirs.
std::vector<StridedBox> boxes_of(const Family& family, const ModelWeights& model,
                                 const NamedShape& ours, const Module& module,
                                 std::vector<std::int64_t>& theirs);

/// "layers.{}.x" for block 3: "layers.3.x".
std::string with_number(std::string_view pattern, std::int64_t number);

}  // namespace sherd::huggingface
