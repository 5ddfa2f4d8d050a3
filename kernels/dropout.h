/// Dropout: which elements of an activation are kept, and by how much they are scaled.
///
///   keep(e)  =  word(e) >= p * 2^32          word(e): kernels/philox.h, e a global element index
///   y[e]     =  keep(e) ? x[e] * 1 / (1 - p) : 0        (Srivastava et al. 2014, inverted form)
///
/// The mask is never stored: forward, backward and recompute ask for it again. The element index is
/// built from the *global* row of the batch, so the mask doesn't depend on the world size.
#pragma once

#include <cstdint>

#include "kernels/philox.h"

namespace sherd::kernels {

struct Dropout {
  float probability = 0.0f;  ///< p, in [0, 1); 0 switches dropout off
  RandomAddress address;
  std::int64_t first_element = 0;  ///< global index of the tensor's first element here

  bool active() const { return probability > 0.0f; }
  /// An element is kept if its word is at least this.
  std::uint32_t threshold() const {
    return static_cast<std::uint32_t>(static_cast<double>(probability) * 4294967296.0);
  }
  float scale() const { return 1.0f / (1.0f - probability); }
};

}  // namespace sherd::kernels
