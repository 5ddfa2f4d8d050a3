#include "checkpoint/format/shard_layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>

#include "core/error.h"

namespace sherd::checkpoint {
namespace {

/// Values of 16 bits may be saved as f32.
bool has_type_of(const sharding::StatePiece& piece, const sharding::StateTensor& tensor) {
  const DType held = piece.data.dtype;
  return held == tensor.dtype ||
         (tensor.dtype == DType::kF32 && (held == DType::kBF16 || held == DType::kF16));
}

/// Pieces by tensor and first element; each must lie in its tensor and have its type.
std::vector<sharding::StatePiece> sorted_pieces(const sharding::State& state) {
  std::vector<sharding::StatePiece> pieces;
  for (const sharding::StatePiece& piece : state.pieces) {
    SHERD_CHECK(piece.tensor >= 0 && piece.tensor < static_cast<int>(state.tensors.size()));
    const sharding::StateTensor& tensor = state.tensors[static_cast<std::size_t>(piece.tensor)];
    SHERD_CHECK(
        piece.band.first >= 0 && piece.band.first + piece.band.columns <= tensor.shape.back(),
        "columns [{}, +{}) of {}", piece.band.first, piece.band.columns, tensor.name);
    const std::int64_t numel = sharding::numel_of(tensor, piece.band);
    SHERD_CHECK(
        piece.first_element >= 0 && piece.count >= 0 && piece.first_element + piece.count <= numel,
        "piece [{}, +{}) of {}, which has {} elements", piece.first_element, piece.count,
        tensor.name, numel);
    SHERD_CHECK(piece.data.numel == piece.count && has_type_of(piece, tensor),
                "a piece of {} {} is {} x {} in memory, {} x {} by its words", tensor.kind,
                tensor.name, piece.data.numel, name_of(piece.data.dtype), piece.count,
                name_of(tensor.dtype));
    if (piece.count > 0) pieces.push_back(piece);
  }
  std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) {
    return std::tie(a.tensor, a.band.first, a.first_element) <
           std::tie(b.tensor, b.band.first, b.first_element);
  });
  return pieces;
}

}  // namespace

ShardLayout lay_out_shard(const sharding::State& state) {
  const std::vector<sharding::StatePiece> pieces = sorted_pieces(state);
  const auto tensor_of = [&](const sharding::StatePiece& piece) -> const sharding::StateTensor& {
    return state.tensors[static_cast<std::size_t>(piece.tensor)];
  };
  std::vector<std::string> kinds;
  for (const sharding::StateTensor& tensor : state.tensors) {
    if (std::find(kinds.begin(), kinds.end(), tensor.kind) == kinds.end()) {
      kinds.push_back(tensor.kind);
    }
  }
  ShardLayout layout;
  for (const std::string& kind : kinds) {
    ShardDataset dataset;
    dataset.kind = kind;
    for (const sharding::StatePiece& piece : pieces) {
      const sharding::StateTensor& tensor = tensor_of(piece);
      if (tensor.kind != kind) continue;
      SHERD_CHECK(dataset.numel == 0 || dataset.dtype == tensor.dtype, "{} is {} here, {} there",
                  kind, name_of(dataset.dtype), name_of(tensor.dtype));
      dataset.dtype = tensor.dtype;
      layout.info.pieces.push_back(
          {piece.tensor, piece.first_element, piece.count, dataset.numel, piece.band});
      layout.sources.emplace_back(piece.data);
      dataset.numel += piece.count;
    }
    if (dataset.numel > 0) layout.info.datasets.push_back(std::move(dataset));
  }
  return layout;
}

std::string place_name(const ShardInfo& shard, const std::vector<sharding::StateTensor>& tensors,
                       const std::string& kind, std::int64_t element) {
  for (const ShardPiece& piece : shard.pieces) {
    const sharding::StateTensor& tensor = tensors[static_cast<std::size_t>(piece.tensor)];
    if (tensor.kind != kind || element < piece.position ||
        element >= piece.position + piece.count) {
      continue;
    }
    return fmt::format("{} of {}, element {}", kind, tensor.name,
                       sharding::element_of_tensor(tensor, piece.band,
                                                   piece.first_element + element - piece.position));
  }
  SHERD_CHECK(false, "no piece has element {} of {}", element, kind);
}

}  // namespace sherd::checkpoint
