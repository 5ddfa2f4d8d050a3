/// Merges an adapter (adapter_folder.h) into the weights of a model folder.
///
///   W + s B A       for matrices; computed in f64 and rounded once
///   other tensors   for fully trained modules and biases
///
/// Memory   one copy of the adapter and the fully trained modules, in f32.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/huggingface/adapter_folder.h"
#include "engine/huggingface/weight_map.h"

namespace sherd::huggingface {

/// Some rows of one of our matrices, and the update added to them.
struct MatrixDelta {
  std::int64_t first_row = 0, rows = 0, columns = 0, rank = 0;
  double scale = 1.0;
  std::vector<float> a, b;  ///< [rank, columns], [rows, rank], rows in our order

  /// Adds to elements [first, first + count) of the matrix. `rounds_to_odd`: rounds so that a later
  /// rounding to 16 bits gives the same result as a single rounding.
  void add_to(float* values, std::int64_t first, std::int64_t count, bool rounds_to_odd) const;
};

struct Overlay {
  std::map<std::string, std::vector<MatrixDelta>> deltas;  ///< by our parameter name
  std::map<std::string, std::vector<float>> replaced;      ///< by Hugging Face name in a text model
  std::set<std::string> replaced_ours;                     ///< fully replaced parameters, our names
  bool rounds_to_odd = false;
};

/// Rounds to odd, so that a later rounding to fewer bits gives the same result as a single rounding
/// (Boldo & Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE Trans. Computers
/// 2008).
float rounded_to_odd(double value);

/// `model` has as many rows of the vocabulary as the adapter.
/// Errors   DataError for tensors that the model lacks or has in another shape, and for a tied
///          model whose embedding and head the adapter trains separately.
std::shared_ptr<Overlay> overlay_of(const AdapterFolder& adapter, const Family& family,
                                    const ModelWeights& model);

}  // namespace sherd::huggingface
