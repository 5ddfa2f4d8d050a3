/// cuDNN's graphs for attention: one for each shape, type, direction and scratch size. Which plan
/// computes it is the first of cuDNN's heuristics that fits into the scratch, never the result of
/// timing.
///
/// A graph can be checked without a GPU, for a Hopper that is described by its properties:
/// tests/cuda_plans/attention_graph_test.cpp asks so whether there is a plan, and what it wants.
#pragma once

#include <cudnn_frontend.h>

#include <string>
#include <tuple>

#include "kernels/attention.h"

namespace sherd::kernels::cuda {

/// The graph's tensors. Seed and offset, 64-bit numbers, where there is dropout.
enum AttentionUid : std::int64_t { kQ, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv, kSeed, kOffset };

struct AttentionGraphKey {
  AttentionShape shape;
  DType dtype = DType::kBF16;
  bool backward = false, deterministic = true;
  float dropout = 0.0f;
  std::int64_t scratch_bytes = 0;

  auto tied() const {
    return std::tie(shape.sequences, shape.positions, shape.query_heads, shape.kv_heads,
                    shape.head_width, shape.scale, dtype, backward, deterministic, dropout,
                    scratch_bytes);
  }
  bool operator<(const AttentionGraphKey& other) const { return tied() < other.tied(); }

  std::string text() const;
};

/// UsageError in one line, with the key and cuDNN's version, if it has no plan or none that fits.
std::unique_ptr<cudnn_frontend::graph::Graph> build_attention_graph(const AttentionGraphKey& key,
                                                                    cudnnHandle_t handle);
/// The same, up to the point where kernels are loaded.
void check_attention_graph(const AttentionGraphKey& key,
                           std::shared_ptr<const cudnn_frontend::DeviceProperties> hopper);
[[noreturn]] void refuse_attention(const AttentionGraphKey& key, std::string reason);

}  // namespace sherd::kernels::cuda
