// Tensor ranks that share the tokens of the residual stream, against tensor ranks that all have all of them
// (tensor_parallel_test.cpp compares those with one device). Sums of rows are the same sums, so losses and gradients
// of matrices have the same bits; a norm's gradient is added up over ranks, in another order.

#include "tests/engine/model/cut_case.h"

namespace sherd::testing {
namespace {

using model::ModelShape;

ModelShape sequence_parallel(ModelShape shape) {
  shape.part.sequence_parallel = true;
  return shape;
}

bool is_of_norm(const std::string& parameter) {
  return parameter.find("norm") != std::string::npos;
}

// Norms of queries and keys are of heads, whose tokens aren't shared.
bool is_on_residual(const std::string& norm) {
  return norm.find("query_norm") == std::string::npos && norm.find("key_norm") == std::string::npos;
}

void expect_same(const std::vector<Computed>& shared, const std::vector<Computed>& all,
                 double tolerance, const std::string& label) {
  for (std::size_t r = 0; r < all.size(); ++r) {
    EXPECT_EQ(shared[r].losses, all[r].losses) << label << ", rank " << r;
    for (const auto& [name, gradient] : all[r].gradients) {
      const std::vector<float>& own = shared[r].gradients.at(name);
      if (!is_of_norm(name) || !is_on_residual(name)) {
        EXPECT_EQ(own, gradient) << label << ", rank " << r << ": " << name;
        continue;
      }
      EXPECT_EQ(own, shared[0].gradients.at(name)) << label << ", rank " << r << ": " << name;
      const double size = farthest(gradient, std::vector<float>(gradient.size()));
      EXPECT_LE(farthest(own, gradient), tolerance * size) << label << ": " << name;
    }
  }
}

// 18 tokens, of which two ranks have 9 each; four 5, 5, 5 and 3; eight 3 each, and two of them none.
TEST(SequenceParallel, LossesAndMatricesGradientsHaveTheBitsOfTensorRanksUnderDropout) {
  for (const ModelForm& form : tensor_rank_forms()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      ModelShape shape = form.shape;
      shape.dtype = dtype;
      const ValuesByName weights = weights_of(shape);
      const MicroBatch batch = micro_batch_of(shape);
      for (const int degree : {2, 4, 8}) {
        expect_same(compute_cut(sequence_parallel(shape), degree, weights, batch),
                    compute_cut(shape, degree, weights, batch), 1e-6,
                    fmt::format("{}, {}, {} ranks", form.name, name_of(dtype), degree));
      }
    }
  }
}

// A mask from elsewhere moves nearly every gradient by much of its size.
TEST(SequenceParallel, EveryTokenIsDroppedByItsPlaceInTheMicroBatch) {
  for (const char* name : {"gpt2", "parallel", "sandwich"}) {
    ModelShape shape = cuttable_form(name);
    shape.dropout = 0.5;
    const ValuesByName weights = weights_of(shape);
    const MicroBatch batch = micro_batch_of(shape);
    expect_same(compute_cut(sequence_parallel(shape), 4, weights, batch),
                compute_cut(shape, 4, weights, batch), 1e-6, name);
  }
}

TEST(SequenceParallel, RecomputedActivationsGiveTheSameBits) {
  for (const ModelForm& form : tensor_rank_forms()) {
    ModelShape shape = sequence_parallel(form.shape);
    const ValuesByName weights = weights_of(shape);
    const MicroBatch batch = micro_batch_of(shape);
    const auto kept = compute_cut(shape, 4, weights, batch);
    for (const auto recompute : {model::Recompute::kSelective, model::Recompute::kFull}) {
      shape.recompute = recompute;
      const auto again = compute_cut(shape, 4, weights, batch);
      for (std::size_t r = 0; r < kept.size(); ++r) {
        EXPECT_EQ(again[r].gradients, kept[r].gradients) << form.name << ", rank " << r;
      }
    }
  }
}

TEST(SequenceParallel, EvaluationHasTheBitsOfTrainingsLosses) {
  for (const char* name : {"gpt2", "one_kv_head", "sandwich"}) {
    expect_evaluation_has_the_bits_of_training(sequence_parallel(cuttable_form(name)), name);
  }
}

TEST(SequenceParallel, OneRankHasTheBuffersOfAWholeModel) {
  const ModelShape shape = cuttable_form("llama");
  const ValuesByName weights = weights_of(shape);
  const MicroBatch batch = micro_batch_of(shape);
  EXPECT_EQ(compute_whole(sequence_parallel(shape), weights, batch).buffers,
            compute_whole(shape, weights, batch).buffers);
}

std::int64_t bytes_kept(const Computed& computed) {
  std::int64_t bytes = 0;
  for (const BufferSpec& buffer : computed.buffers) {
    if (buffer.name.starts_with("block.")) bytes += buffer.bytes();
  }
  return bytes;
}

// Korthikanti et al., arXiv:2205.05198, equation 4: with attention's probabilities left out, the bytes that a layer
// keeps are those of one rank, 34 s b h in the paper's list, by the number of ranks. In our own list as well, in every
// form, to the byte; without sequence parallelism the residual stream and the norms' outputs are whole on each.
TEST(SequenceParallel, ALayerKeepsTheBytesOfOneRankDividedByTheRanks) {
  for (const ModelForm& form : cuttable_forms()) {
    ModelShape shape = form.shape;
    shape.sequences = 4;  // 36 tokens, 9 for each rank
    shape.kv_heads = 4;
    const ValuesByName weights = weights_of(shape);
    const MicroBatch batch = micro_batch_of(shape);
    const std::int64_t whole = bytes_kept(compute_whole(shape, weights, batch));
    if (shape.qk_norm == model::QkNorm::kProjection) continue;  // a statistic for each rank's part
    for (const Computed& rank : compute_cut(sequence_parallel(shape), 4, weights, batch)) {
      EXPECT_EQ(bytes_kept(rank) * 4, whole) << form.name;
    }
    EXPECT_GT(bytes_kept(compute_cut(shape, 4, weights, batch)[0]) * 4, whole) << form.name;
  }
}

}  // namespace
}  // namespace sherd::testing
