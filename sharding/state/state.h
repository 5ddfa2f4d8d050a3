/// A run's state, described independently of stage and world: logical tensors, each with a name, a
/// kind and a shape, whose elements are numbered row-major. A rank holds pieces of them. Flat
/// layouts, padding and rank numbers don't appear here. So what is saved at one stage and world can
/// be loaded at any other.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace sherd::sharding {

/// One kind of state of one parameter.
struct StateTensor {
  std::string name;                 ///< the parameter's name, e.g. "block.3.up.weight"
  std::string kind;                 ///< "param" (the FP32 parameter), "exp_avg", "momentum", ...
  std::vector<std::int64_t> shape;  ///< row-major
  DType dtype = DType::kF32;        ///< f32, bf16 or u8

  std::int64_t numel() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
  bool operator==(const StateTensor&) const = default;
};

/// Neighbouring columns of a tensor. Its last dimension is seen as columns, all others as rows. The
/// elements of a band are numbered row-major, as in a separate tensor.
struct Band {
  std::int64_t first = 0, columns = 0;  ///< columns 0: all of them

  bool is_whole() const { return columns == 0; }
  bool operator==(const Band&) const = default;
};

/// Number of elements in a band of a tensor.
inline std::int64_t numel_of(const StateTensor& tensor, const Band& band) {
  return band.is_whole() ? tensor.numel() : tensor.numel() / tensor.shape.back() * band.columns;
}

/// The index in the tensor of element `element` of a band.
inline std::int64_t element_of_tensor(const StateTensor& tensor, const Band& band,
                                      std::int64_t element) {
  if (band.is_whole()) return element;
  return element / band.columns * tensor.shape.back() + band.first + element % band.columns;
}

/// Consecutive elements of one tensor, or of a band of it, in this rank's memory.
struct StatePiece {
  int tensor = 0;                  ///< index into State::tensors
  std::int64_t first_element = 0;  ///< index in the band
  std::int64_t count = 0;
  Tensor data;  ///< [count], of the tensor's type; to be saved as f32, also of 16 bits
  Band band{};
};

/// Copies bytes from or to the memory of a rank's state, and returns when they are there. Empty:
/// the memory is the host's own.
using CopyState = std::function<void(const void* from, void* to, std::int64_t bytes)>;

struct State {
  std::vector<StateTensor> tensors;  ///< of the whole model, the same list on every rank
  std::vector<StatePiece> pieces;    ///< this rank's pieces
};

}  // namespace sherd::sharding
