// Adapters of experts' matrices against experts whose matrices are W + s B A: the same rows, and gradients of A and B that
// follow from the gradient of that matrix.

#include "kernels/expert_adapters.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/experts.h"
#include "tests/kernels/expert_routes.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::OwnedTensor;
using test::Values;

constexpr std::int64_t kRank = 3;
constexpr float kScale = 0.75f;

// Rows [first, first + outputs) of each expert's matrix [rows, inputs].
struct Target {
  bool of_up = true;
  std::int64_t inputs = 0, rows = 0, first = 0, outputs = 0;
};

std::vector<Target> targets_of(const ExpertsShape& shape) {
  const std::int64_t D = shape.width, F = shape.ffn_width, U = shape.up_width();
  std::vector<Target> targets{{true, D, U, 0, F}, {false, F, D, 0, D}};
  if (U > F) targets.push_back({true, D, U, F, F});
  return targets;
}

struct Results {
  std::vector<OwnedTensor> rows;  // y, gradients of the weights and of x
  std::vector<OwnedTensor> of_matrices, of_a, of_b;
};

class AdapterExperts {
 public:
  AdapterExperts(const Routed& routed, DType dtype)
      : shape_(routed.shape),
        dtype_(dtype),
        x_(random(shape_.tokens * shape_.width, 1)),
        dy_(random(shape_.tokens * shape_.width, 2)),
        weights_(DType::kF32, test::random_values(shape_.tokens * shape_.per_token, 3)),
        chosen_(routed.chosen),
        up_(test::random_values(shape_.experts * shape_.up_width() * shape_.width, 4, 0.4)),
        down_(test::random_values(shape_.experts * shape_.width * shape_.ffn_width, 5, 0.4)) {
    std::uint64_t seed = 10;
    for (const Target& target : targets_of(shape_)) {
      a_.push_back(random(shape_.experts * kRank * target.inputs, ++seed, 0.5));
      b_.push_back(random(shape_.experts * target.outputs * kRank, ++seed, 0.5));
    }
  }

  Results adapted(std::int64_t buffer_rows) {
    const std::vector<Target> targets = targets_of(shape_);
    OwnedTensor h(dtype_, buffer_rows * kRank), z(dtype_, buffer_rows * shape_.ffn_width);
    ExpertAdapters adapters{.rank = kRank, .scale = kScale, .h = h, .z = z};
    Results results;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      results.of_a.emplace_back(DType::kF32, a_[i].numel());
      results.of_b.emplace_back(DType::kF32, b_[i].numel());
      (targets[i].of_up ? adapters.up : adapters.down)
          .push_back({a_[i], b_[i], targets[i].first, targets[i].outputs,
                      results.of_a.back().tensor(), results.of_b.back().tensor()});
    }
    run(buffer_rows, OwnedTensor(dtype_, up_), OwnedTensor(dtype_, down_), adapters, results);
    return results;
  }

  Results merged() {
    Values up = up_, down = down_;
    const std::vector<Target> targets = targets_of(shape_);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const Target& target = targets[i];
      const Values a = a_[i].values(), b = b_[i].values();
      Values& matrix = target.of_up ? up : down;
      each(target, [&](std::size_t in_matrix, std::size_t in_a, std::size_t in_b) {
        matrix[in_matrix] += kScale * b[in_b] * a[in_a];
      });
    }
    Results results;
    run(shape_.buffer_rows, OwnedTensor(dtype_, up), OwnedTensor(dtype_, down), {}, results);
    return results;
  }

  // dA = s B^T dW, dB = s dW A^T.
  void expect_gradients(const Results& found, const Results& of_matrices) const {
    const std::vector<Target> targets = targets_of(shape_);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const Values a = a_[i].values(), b = b_[i].values();
      const Values d_matrix = of_matrices.of_matrices[targets[i].of_up ? 0 : 1].values();
      Values d_a(a.size()), d_b(b.size());
      each(targets[i], [&](std::size_t in_matrix, std::size_t in_a, std::size_t in_b) {
        d_a[in_a] += kScale * b[in_b] * d_matrix[in_matrix];
        d_b[in_b] += kScale * a[in_a] * d_matrix[in_matrix];
      });
      expect_near(found.of_a[i].values(), d_a, "A");
      expect_near(found.of_b[i].values(), d_b, "B");
    }
  }

  static void expect_near(const Values& found, const Values& expected, const char* what) {
    double largest = 0.0;
    for (const double value : expected) largest = std::max(largest, std::abs(value));
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      ASSERT_NEAR(found[i], expected[i], 1e-5 * largest) << what << " " << i;
    }
  }

 private:
  OwnedTensor random(std::int64_t numel, std::uint64_t seed, double scale = 1.0) const {
    return {dtype_, test::random_values(numel, seed, scale)};
  }

  // Each product that adds to an element of a matrix.
  template <class Use>
  void each(const Target& target, const Use& use) const {
    for (std::int64_t e = 0; e < shape_.experts; ++e) {
      for (std::int64_t row = 0; row < target.outputs; ++row) {
        for (std::int64_t k = 0; k < kRank; ++k) {
          for (std::int64_t column = 0; column < target.inputs; ++column) {
            use(static_cast<std::size_t>((e * target.rows + target.first + row) * target.inputs +
                                         column),
                static_cast<std::size_t>((e * kRank + k) * target.inputs + column),
                static_cast<std::size_t>((e * target.outputs + row) * kRank + k));
          }
        }
      }
    }
  }

  void run(std::int64_t C, const OwnedTensor& up_matrix, const OwnedTensor& down_matrix,
           const ExpertAdapters& adapters, Results& results) {
    ExpertsShape shape = shape_;
    shape.buffer_rows = C;
    const std::int64_t T = shape.tokens, D = shape.width, F = shape.ffn_width;
    OwnedTensor sums(DType::kF32, T * D), d_sum(DType::kF32, T * D), rows(dtype_, C * D),
        up(dtype_, C * shape.up_width()), activated(dtype_, C * F), d_activated(dtype_, C * F),
        order(DType::kI32, experts_order_numel(shape)),
        matmuls(DType::kU8, experts_workspace_bytes(shape, dtype_, DType::kF32, {}));
    const ExpertsWorkspace buffers{sums, rows, up, activated, d_activated, order, matmuls};
    results.rows.emplace_back(dtype_, T * D);
    results.rows.emplace_back(DType::kF32, T * shape.per_token);
    results.of_matrices.emplace_back(DType::kF32, up_matrix.numel());
    results.of_matrices.emplace_back(DType::kF32, down_matrix.numel());
    const auto stream = make_cpu_compute_stream({});
    experts_forward(*stream, {.shape = shape,
                              .x = x_,
                              .up = up_matrix,
                              .down = down_matrix,
                              .chosen = chosen_,
                              .weights = weights_,
                              .y = results.rows[0],
                              .workspace = buffers,
                              .adapters = adapters});
    experts_backward(*stream, {.shape = shape,
                               .x = x_,
                               .dy = dy_,
                               .up = up_matrix,
                               .down = down_matrix,
                               .chosen = chosen_,
                               .weights = weights_,
                               .d_weights = results.rows[1],
                               .d_sum = d_sum,
                               .d_up = results.of_matrices[0],
                               .d_down = results.of_matrices[1],
                               .workspace = buffers,
                               .adapters = adapters});
    stream->synchronize();
    results.rows.push_back(d_sum);
  }

  ExpertsShape shape_;
  DType dtype_;
  OwnedTensor x_, dy_, weights_, chosen_;
  Values up_, down_;
  std::vector<OwnedTensor> a_, b_;
};

TEST(ExpertAdapters, FormTheRowsAndGradientsOfMatricesThatTheyAreMergedInto) {
  for (const Routed& routed : routed_shapes()) {
    SCOPED_TRACE(routed.number);
    AdapterExperts experts(routed, DType::kF32);
    const Results found = experts.adapted(routed.shape.buffer_rows), merged = experts.merged();
    for (std::size_t i = 0; i < found.rows.size(); ++i) {
      AdapterExperts::expect_near(found.rows[i].values(), merged.rows[i].values(), "row");
    }
    experts.expect_gradients(found, merged);
  }
}

TEST(ExpertAdapters, HaveTheSameBitsWithABufferOfAnySize) {
  for (const Routed& routed : routed_shapes()) {
    const ExpertsShape& shape = routed.shape;
    const std::int64_t all = shape.tokens * shape.per_token;
    if (all <= kExpertPiece) continue;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      AdapterExperts experts(routed, dtype);
      const Results one = experts.adapted(all);
      for (const std::int64_t rows : {kExpertPiece, kExpertPiece + 100}) {
        const Results found = experts.adapted(rows);
        for (const auto of : {&Results::rows, &Results::of_a, &Results::of_b}) {
          for (std::size_t i = 0; i < (one.*of).size(); ++i) {
            EXPECT_EQ((found.*of)[i].values(), (one.*of)[i].values()) << routed.number;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd::kernels
