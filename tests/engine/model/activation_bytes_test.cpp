// What a rank's activations take, against a sum over the list of saved tensors in
// engine/model/activations.h that this test does by hand, in bytes per token.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/model/transformer.h"
#include "engine/model/workspace.h"
#include "kernels/linear.h"
#include "tests/support/models/model_forms.h"

namespace sherd::model {
namespace {

ModelShape gpt2_shape() {
  ModelShape shape;
  shape.num_layers = 5;
  shape.width = 24;
  shape.query_heads = 3;
  shape.kv_heads = 3;
  shape.ffn_width = 96;
  shape.vocab_size = 37;
  shape.max_positions = 16;
  shape.biases = Biases::everywhere();
  shape.sequences = 2;
  shape.seq_length = 13;
  return shape;
}

ModelShape llama_shape() {
  ModelShape shape = gpt2_shape();
  shape.query_heads = 6;
  shape.kv_heads = 2;  // grouped queries: K and V of two heads
  shape.ffn_width = 64;
  shape.norm = kernels::NormKind::kRmsNorm;
  shape.positions = Positions::kRope;
  shape.activation = kernels::ActivationKind::kSwiGlu;
  shape.biases = {};
  return shape;
}

std::int64_t measured(const ModelShape& shape) {
  HeapAllocator memory;
  const auto stream = make_cpu_compute_stream({});
  const Transformer transformer(shape, memory, *stream);
  return memory.peak_by_category()[static_cast<std::size_t>(Category::kActivations)];
}

// Per token: elements of the activations' type, and f32 statistics.
struct PerToken {
  std::int64_t elements = 0, statistics = 0;
};

// The sum for one shape, with D, H, G, K, F, L as in engine/model/shape.h.
std::int64_t predicted(const ModelShape& shape, std::int64_t element_bytes) {
  const std::int64_t D = shape.width, H = shape.query_heads, G = shape.kv_heads;
  const std::int64_t K = shape.head_size > 0 ? shape.head_size : D / H;
  const std::int64_t L = shape.num_layers;
  const bool llama = shape.norm == kernels::NormKind::kRmsNorm;
  using kernels::ActivationKind;
  const bool gated =
      shape.activation == ActivationKind::kSwiGlu || shape.activation == ActivationKind::kGeGlu;
  const std::int64_t E = (H + 2 * G) * K;
  // The feed-forward width of each layer, and the largest; 0 for a layer that is attention alone.
  const auto ffn_width = [&shape](std::int64_t layer) -> std::int64_t {
    if (shape.layer_kinds.empty()) return shape.ffn_width;
    const model::LayerKind kind =
        shape.layer_kinds[static_cast<std::size_t>(layer) % shape.layer_kinds.size()];
    if (kind.mlp == model::MlpKind::kNone) return 0;
    return kind.ffn_width > 0 ? kind.ffn_width : shape.ffn_width;
  };
  std::int64_t largest = 0;
  for (std::int64_t layer = 0; layer < L; ++layer) largest = std::max(largest, ffn_width(layer));
  const std::int64_t norm_statistics = llama ? 1 : 2;  // rstd, and the mean if it is subtracted

  const bool sequential = shape.block_form == BlockForm::kSequential;
  const std::int64_t before = shape.norm_placement == NormPlacement::kPost      ? 0
                              : shape.block_form == BlockForm::kParallelOneNorm ? 1
                                                                                : 2;
  const std::int64_t after = shape.norm_placement == NormPlacement::kPre ? 0 : 2;
  const std::int64_t raw = shape.qk_norm == QkNorm::kNone ? 0 : (H + G) * K;
  const std::int64_t rows = shape.qk_norm == QkNorm::kNone         ? 0
                            : shape.qk_norm == QkNorm::kProjection ? 2
                                                                   : H + G;
  // What selective recompute keeps: qkv and its queries and keys before their norm, attention's
  // output H K, the middle of a sequential block D, up U, the inputs of norms after branches.
  const auto most = [&](std::int64_t F) -> PerToken {
    const std::int64_t U = gated ? 2 * F : F, of_mlp = F > 0 ? 1 : 0;
    const std::int64_t norms =
        (before > 0 ? 1 : 0) + (before > 1 ? of_mlp : 0) + (after > 0 ? 1 + of_mlp : 0);
    return {
        E + raw + H * K + (sequential ? of_mlp * D : 0) + U + (after > 0 ? (1 + of_mlp) * D : 0),
        (norms + rows) * norm_statistics + H};
  };
  // And the outputs of norms before branches, and of the activation.
  const auto all = [&](std::int64_t F) -> PerToken {
    const std::int64_t norms = (before > 0 ? 1 : 0) + (before > 1 && F > 0 ? 1 : 0);
    return {most(F).elements + norms * D + F, most(F).statistics};
  };
  PerToken sum{(L + 1) * D, 0};  // each block's input, and the last one's output
  const auto add = [&](std::int64_t blocks, const PerToken& each) {
    sum.elements += blocks * each.elements;
    sum.statistics += blocks * each.statistics;
  };
  switch (shape.recompute) {
    case Recompute::kNone:
      for (std::int64_t layer = 0; layer < L; ++layer) add(1, all(ffn_width(layer)));
      break;
    case Recompute::kSelective:
      for (std::int64_t layer = 0; layer < L; ++layer) add(1, most(ffn_width(layer)));
      add(1,
          {(before > 0 ? D : 0) + largest, 0});  // one norm's and one activation's, for all blocks
      break;
    case Recompute::kFull:
      add(1, all(largest));
      break;
  }
  add(1, {D, norm_statistics + 1});  // the final norm, and the losses
  // Scratch: a branch, the residual stream's gradient, and a product's gradient on either side.
  add(1, {D + D + std::max(E, (gated ? 2 : 1) * largest) + std::max(H * K, largest), 0});
  // A branch's gradient, where it is masked, scaled, or outlives the residual stream's.
  if (shape.dropout > 0.0 || shape.residual_scale != 1.0 || !sequential) add(1, {D, 0});
  return shape.tokens() * (element_bytes * sum.elements + 4 * sum.statistics);
}

const char* name_of(Recompute mode) {
  return mode == Recompute::kNone ? "none" : mode == Recompute::kFull ? "full" : "selective";
}

TEST(ActivationBytes, AreTheSumOverTheSavedTensors) {
  for (const ModelShape& kind : {gpt2_shape(), llama_shape()}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        for (const bool tied : {false, true}) {
          for (const double dropout : {0.0, 0.25}) {
            ModelShape shape = kind;
            shape.recompute = recompute;
            shape.dtype = dtype;
            shape.tied = tied;
            shape.dropout = dropout;
            EXPECT_EQ(measured(shape), predicted(shape, dtype == DType::kF32 ? 4 : 2))
                << (kind.biases.qkv ? "GPT-2, " : "Llama, ") << name_of(recompute) << ", "
                << sherd::name_of(dtype) << (tied ? ", tied" : "")
                << (dropout > 0.0 ? ", dropout" : "");
          }
        }
      }
    }
  }
}

TEST(ActivationBytes, OfOtherFormsAreTheSumOverTheirSavedTensorsToo) {
  for (const testing::ModelForm& form : testing::model_forms()) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const double dropout : {0.0, 0.25}) {
        ModelShape shape = form.shape;
        shape.recompute = recompute;
        shape.dropout = dropout;
        EXPECT_EQ(measured(shape), predicted(shape, 4))
            << form.name << ", " << name_of(recompute) << (dropout > 0.0 ? ", dropout" : "");
      }
    }
  }
}

// FACTS §2 (arXiv:2205.05198, §4.1), per layer in 16 bit: 34 D bytes a token without the S^2 terms.
// Of these 2 D are two dropout masks, which a counter-based generator doesn't store.
TEST(ActivationBytes, OfAGpt2LayerAreThePapersWithoutItsMasks) {
  ModelShape shape = gpt2_shape();
  shape.dtype = DType::kBF16;
  const std::int64_t before = measured(shape);
  ++shape.num_layers;
  const std::int64_t statistics = 4 * (2 * 2 + shape.query_heads);
  EXPECT_EQ(measured(shape) - before, shape.tokens() * (32 * shape.width + statistics));
  // Full recompute keeps the block's input: 2 D bytes.
  shape.recompute = Recompute::kFull;
  const std::int64_t full = measured(shape);
  ++shape.num_layers;
  EXPECT_EQ(measured(shape) - full, shape.tokens() * 2 * shape.width);
}

TEST(ActivationBytes, FullRecomputeOfTwelveLayersTakesAFifthOrLess) {
  ModelShape shape;
  shape.num_layers = 12;
  shape.width = 64;
  shape.query_heads = shape.kv_heads = 4;
  shape.ffn_width = 256;
  shape.vocab_size = 65;
  shape.max_positions = shape.seq_length = 1024;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const double dropout : {0.0, 0.1}) {
      shape.dtype = dtype;
      shape.dropout = dropout;
      shape.recompute = Recompute::kNone;
      const std::int64_t none = measured(shape);
      shape.recompute = Recompute::kSelective;
      const std::int64_t selective = measured(shape);
      shape.recompute = Recompute::kFull;
      const std::int64_t full = measured(shape);
      EXPECT_GE(none, 5 * full) << name_of(dtype) << ", dropout " << dropout;
      EXPECT_LT(full, selective);
      EXPECT_LT(selective, none);
    }
  }
}

// With tensor ranks, an adapter's rank may exceed the rows that a rank has of every matrix.
TEST(WorkspaceBytes, CoverTheProductsOfAnAdapter) {
  ModelShape shape;
  shape.num_layers = 1;
  shape.width = 1024;
  shape.query_heads = shape.kv_heads = 1;
  shape.head_size = 16;
  shape.ffn_width = 64;
  shape.vocab_size = 16;
  shape.max_positions = shape.seq_length = 16;
  shape.sequences = 64;
  shape.adapter = {.rank = 1024, .targets = {"attention.query"}};
  const kernels::ComputeDevice device{.num_threads = 2};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    shape.dtype = dtype;
    const std::int64_t bytes = workspace_bytes(shape, device, false, false);
    for (const kernels::LinearShape& product :
         {kernels::LinearShape{shape.tokens(), 1024, 1024}, {shape.tokens(), 1024, 16}}) {
      EXPECT_GE(bytes, kernels::linear_workspace_bytes(product, dtype, DType::kF32, device));
    }
    if (dtype == DType::kF32) continue;
    shape.adapter.rank = 8;
    EXPECT_LT(workspace_bytes(shape, device, false, false), bytes) << "it is the adapter's";
  }
}

}  // namespace
}  // namespace sherd::model
