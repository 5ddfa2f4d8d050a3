/// How equal pieces of a unit's flat buffer lie in the bytes that ranks send, if they send blocks
/// (kernels/block_codec.h).
///
/// Parameters with one dimension (norms, biases) are sent as f32, all others in blocks. Parameters
/// and pieces begin at multiples of 64 elements (flat_layout.h), so a block never has elements of
/// two parameters or pieces. It is the same at every stage and on any number of ranks. Padding after
/// a parameter belongs to its last block.
///
/// A piece's bytes are its runs, which are neighbouring elements of one format. Each begins at a
/// multiple of 16 bytes. All pieces have as many bytes as the longest, because collectives
/// exchange equal parts.
#pragma once

#include <cstdint>
#include <vector>

#include "core/parameter.h"
#include "core/stream.h"
#include "kernels/block_codec.h"
#include "sharding/zero/flat_layout.h"

namespace sherd::sharding {

struct WireRun {
  kernels::BlockFormat format = kernels::BlockFormat::kF32;
  std::int64_t position = 0, count = 0;    ///< elements, in the piece
  std::int64_t first_byte = 0, bytes = 0;  ///< in the piece's bytes

  bool operator==(const WireRun&) const = default;
};

class WireLayout {
 public:
  /// Of `unit`, whose buffer is `flat`. `num_pieces` divides it at multiples of 64 elements.
  WireLayout(const UnitSpec& unit, const FlatLayout& flat, kernels::BlockFormat format,
             int num_pieces);

  int num_pieces() const { return static_cast<int>(runs_.size()); }
  std::int64_t piece_numel() const { return piece_numel_; }
  std::int64_t piece_bytes() const { return piece_bytes_; }
  std::int64_t bytes() const { return num_pieces() * piece_bytes_; }
  const std::vector<WireRun>& runs(int piece) const {
    return runs_[static_cast<std::size_t>(piece)];
  }

  /// A piece's elements, f32 [piece_numel] -> its bytes, u8 [piece_bytes].
  void encode(Stream& stream, int piece, const Tensor& elements, const Tensor& bytes) const;
  /// Adds what `count` ranks have encoded of a piece, in their order; `bytes` has piece_bytes for
  /// each. kernels::sum_blocks says how. With one rank and without onto_out it decodes.
  void sum(Stream& stream, int piece, const Tensor& bytes, int count, const Tensor& out,
           bool onto_out) const;
  /// The same elements, encoded and decoded. out may be elements.
  void round(Stream& stream, int piece, const Tensor& elements, const Tensor& out) const;

 private:
  std::int64_t piece_numel_ = 0, piece_bytes_ = 0;
  std::vector<std::vector<WireRun>> runs_;  // by piece
};

/// Whether a tensor rank's or expert rank's parts of the unit's parameters are whole blocks of the
/// whole parameters. Returns the first parameter of which they aren't; null if there is none.
const ParameterSpec* cuts_blocks(const UnitSpec& unit);

}  // namespace sherd::sharding
