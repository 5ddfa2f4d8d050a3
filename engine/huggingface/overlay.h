/// A folder's weights with an adapter in them: what an adapter's folder (adapter_folder.h) changes of a model's.
///
///   W + s B A       of matrices; formed in f64 and rounded once
///   other tensors   of modules that are trained whole, biases
///
/// Memory   the adapter and the modules trained whole, once, in f32.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/huggingface/adapter_folder.h"
#include "engine/huggingface/weight_map.h"

namespace sherd::huggingface {

/// Some rows of one of our matrices, and what is added to them.
struct MatrixDelta {
  std::int64_t first_row = 0, rows = 0, columns = 0, rank = 0;
  double scale = 1.0;
  std::vector<float> a, b;  ///< [rank, columns], [rows, rank], rows as ours

  /// Adds to elements [first, first + count) of the matrix. `rounds_to_odd`: so that rounding to 16 bits later is as if
  /// it were the only rounding.
  void add_to(float* values, std::int64_t first, std::int64_t count, bool rounds_to_odd) const;
};

struct Overlay {
  std::map<std::string, std::vector<MatrixDelta>> deltas;  ///< by our parameter
  std::map<std::string, std::vector<float>> replaced;      ///< by their tensor, of a model of text
  std::set<std::string> replaced_ours;                     ///< parameters that are replaced whole
  bool rounds_to_odd = false;
};

/// Rounds so that a later rounding to fewer bits is as if it were the only one: to odd (Boldo &
/// Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE Trans. Computers 2008).
float rounded_to_odd(double value);

/// `model` has the adapter's rows of the vocabulary.
/// Errors   DataError for what the model hasn't, or has in another shape; for a tied model whose embedding and head
///          the adapter trains apart.
std::shared_ptr<Overlay> overlay_of(const AdapterFolder& adapter, const Family& family,
                                    const ModelWeights& model);

}  // namespace sherd::huggingface
