/// What a run is made of, in words that depend neither on the stage nor on the world: logical
/// tensors, each with a name, a kind and a shape, whose elements are numbered row-major. A rank
/// holds pieces of them. Flat layouts, padding and rank numbers don't appear here, so what is saved
/// in these words at one stage and world is loaded at any other.
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
  std::string name;                 ///< the parameter's, e.g. "block.3.up.weight"
  std::string kind;                 ///< "param" (the FP32 parameter), "exp_avg", "momentum", ...
  std::vector<std::int64_t> shape;  ///< row-major
  DType dtype = DType::kF32;        ///< f32 or bf16

  std::int64_t numel() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
  bool operator==(const StateTensor&) const = default;
};

/// Neighbouring columns of a tensor, whose last dimension is seen as its columns and all others as rows. The
/// elements of a band are numbered row-major, as if it were a tensor of its own.
struct Band {
  std::int64_t first = 0, columns = 0;  ///< columns 0: all of them

  bool is_whole() const { return columns == 0; }
  bool operator==(const Band&) const = default;
};

/// How many elements a band of a tensor has.
inline std::int64_t numel_of(const StateTensor& tensor, const Band& band) {
  return band.is_whole() ? tensor.numel() : tensor.numel() / tensor.shape.back() * band.columns;
}

/// Which element of the tensor is element `element` of a band.
inline std::int64_t element_of_tensor(const StateTensor& tensor, const Band& band,
                                      std::int64_t element) {
  if (band.is_whole()) return element;
  return element / band.columns * tensor.shape.back() + band.first + element % band.columns;
}

/// Consecutive elements of one tensor, or of a band of it, in this rank's memory.
struct StatePiece {
  int tensor = 0;                  ///< index into State::tensors
  std::int64_t first_element = 0;  ///< of the band
  std::int64_t count = 0;
  Tensor data;  ///< [count], of the tensor's type
  Band band{};
};

/// Copies bytes from or to the memory of a rank's state and returns when they are there. Empty: it
/// is the host's own.
using CopyState = std::function<void(const void* from, void* to, std::int64_t bytes)>;

struct State {
  std::vector<StateTensor> tensors;  ///< of the whole model, the same list on every rank
  std::vector<StatePiece> pieces;    ///< this rank's
};

}  // namespace sherd::sharding
