#include "kernels/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/expert_rows.h"
#include "tests/kernels/expert_routes.h"
#include "tests/support/oracles/oracle_activation.h"
#include "tests/support/oracles/oracle_linear.h"
#include "tests/support/values/tensors.h"

// T tokens of width D, E experts of width F, k of them for each token.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

struct Case {
  ExpertsShape shape;
  DType dtype = DType::kF32;
  std::vector<std::int32_t> chosen;
  bool shares = false;
};

enum Output { kY, kDWeights, kDX, kDUp, kDDown };

struct Tensors {
  explicit Tensors(const Case& c)
      : x(c.dtype, test::random_values(c.shape.tokens * c.shape.width, 1)),
        dy(c.dtype, test::random_values(c.shape.tokens * c.shape.width, 2)),
        shared(c.dtype, test::random_values(c.shape.tokens * c.shape.width, 3)),
        up(c.dtype,
           test::random_values(c.shape.experts * c.shape.up_width() * c.shape.width, 4, 0.4)),
        down(c.dtype,
             test::random_values(c.shape.experts * c.shape.width * c.shape.ffn_width, 5, 0.4)),
        weights(DType::kF32, test::random_values(c.shape.tokens * c.shape.per_token, 6)),
        chosen(c.chosen) {}
  OwnedTensor x, dy, shared, up, down, weights, chosen;
};

Outputs both_ways(Stream& stream, const Case& c, const Tensors& in) {
  const ExpertsShape& shape = c.shape;
  const std::int64_t T = shape.tokens, D = shape.width, F = shape.ffn_width, C = shape.buffer_rows;
  OwnedTensor sums(DType::kF32, T * D), d_sum(DType::kF32, T * D), rows(c.dtype, C * D),
      up(c.dtype, C * shape.up_width()), activated(c.dtype, C * F), d_activated(c.dtype, C * F),
      order(DType::kI32, experts_order_numel(shape)),
      matmuls(DType::kU8, experts_workspace_bytes(shape, c.dtype, DType::kF32, {}));
  const ExpertsWorkspace buffers{sums, rows, up, activated, d_activated, order, matmuls};
  Outputs out{{c.dtype, T * D},
              {DType::kF32, T * shape.per_token},
              {c.dtype, T * D},
              {DType::kF32, in.up.numel()},
              {DType::kF32, in.down.numel()}};
  const ConstTensor shared = c.shares ? ConstTensor(in.shared) : ConstTensor{};
  experts_forward(stream, {.shape = shape,
                           .x = in.x,
                           .up = in.up,
                           .down = in.down,
                           .chosen = in.chosen,
                           .weights = in.weights,
                           .shared = shared,
                           .y = out[kY],
                           .workspace = buffers});
  experts_backward(stream, {.shape = shape,
                            .x = in.x,
                            .dy = in.dy,
                            .up = in.up,
                            .down = in.down,
                            .chosen = in.chosen,
                            .weights = in.weights,
                            .d_weights = out[kDWeights],
                            .d_sum = d_sum,
                            .d_up = out[kDUp],
                            .d_down = out[kDDown],
                            .workspace = buffers});
  experts_input_gradient(stream, {d_sum, {}, shared, out[kDX]});
  stream.synchronize();
  return out;
}

// What a rank that has some of the experts gets: its pieces, and the range of home rows that they are.
struct Owner {
  std::vector<ExpertPiece> pieces;
  std::vector<int> without_rows;
  RowRange range;
};

std::vector<Owner> owners_of(const std::int32_t* count_of, std::int64_t experts, int owners) {
  const std::int64_t held = experts / owners;
  std::vector<Owner> all(static_cast<std::size_t>(owners));
  std::int64_t at = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    Owner& owner = all[static_cast<std::size_t>(e / held)];
    if (e % held == 0) owner.range.first = at;
    if (count_of[e] == 0) owner.without_rows.push_back(static_cast<int>(e % held));
    for (std::int64_t first = 0; first < count_of[e]; first += kExpertPiece) {
      const std::int64_t count = std::min<std::int64_t>(kExpertPiece, count_of[e] - first);
      owner.pieces.push_back({static_cast<int>(e % held), 0, owner.range.count, count, first == 0});
      owner.range.count += count;
    }
    at += count_of[e];
  }
  return all;
}

// The same in steps, as ranks that divide the experts take them: owner `o` of `owners` has E / owners of the experts.
Outputs in_steps(Stream& stream, const Case& c, const Tensors& in, int owners) {
  const ExpertsShape& shape = c.shape;
  const std::int64_t T = shape.tokens, D = shape.width, F = shape.ffn_width, k = shape.per_token;
  const std::int64_t U = shape.up_width(), E = shape.experts, held = E / owners, C = T * k;
  ExpertsShape owned = shape;
  owned.experts = held;
  owned.buffer_rows = C;
  OwnedTensor sums(DType::kF32, T * D), d_sum(DType::kF32, T * D), rows(c.dtype, C * D),
      up(c.dtype, C * U), activated(c.dtype, C * F), d_activated(c.dtype, C * F),
      order(DType::kI32, experts_order_numel(shape)), counts(DType::kI32, E),
      matmuls(DType::kU8, experts_workspace_bytes(owned, c.dtype, DType::kF32, {})),
      home(c.dtype, C * D), numbers(DType::kF32, C), x_rows(c.dtype, C * D),
      dy_rows(c.dtype, C * D), row_weights(DType::kF32, C), row_d_weights(DType::kF32, C);
  const ExpertsWorkspace buffers{sums, rows, up, activated, d_activated, order, matmuls};
  Outputs out{{c.dtype, T * D},
              {DType::kF32, T * k},
              {c.dtype, T * D},
              {DType::kF32, in.up.numel()},
              {DType::kF32, in.down.numel()}};
  const ConstTensor shared = c.shares ? ConstTensor(in.shared) : ConstTensor{};
  const bool weighs = shape.weighs_input;
  const ConstTensor on_input = weighs ? ConstTensor(numbers) : ConstTensor{};
  const ConstTensor on_output = weighs ? ConstTensor{} : ConstTensor(in.weights);
  expert_order(stream, {shape, in.chosen, order, counts});
  stream.synchronize();
  const std::vector<Owner> all = owners_of(counts.tensor().as<std::int32_t>(), E, owners);
  const auto copy = [&](const Tensor& from, std::int64_t first, const Tensor& to,
                        std::int64_t to_first, std::int64_t count) {
    const Tensor part = from.part(first, count);
    stream.copy(part.data, to.part(to_first, count).data, part.bytes());
  };
  expert_choices_to_rows(stream, {shape, order, in.weights, numbers});
  for (std::size_t o = 0; o < all.size(); ++o) {
    const auto& [pieces, without_rows, range] = all[o];
    const auto first = static_cast<std::int64_t>(o) * held;
    expert_pack(stream, {shape, order, in.x, {range}, home, on_input});
    copy(home, range.first * D, x_rows, 0, range.count * D);
    const ConstTensor up_o = in.up.tensor().part(first * U * D, held * U * D);
    const ConstTensor down_o = in.down.tensor().part(first * D * F, held * D * F);
    expert_rows_forward(stream, {owned, pieces, x_rows, up_o, down_o, buffers});
    copy(rows, 0, home, range.first * D, range.count * D);
  }
  expert_combine(stream, {shape, order, home, on_output, shared, sums, out[kY]});
  for (std::size_t o = 0; o < all.size(); ++o) {
    const auto& [pieces, without_rows, range] = all[o];
    const auto first = static_cast<std::int64_t>(o) * held;
    expert_pack(stream, {shape, order, in.x, {range}, home, on_input});
    copy(home, range.first * D, x_rows, 0, range.count * D);
    expert_pack(stream, {shape, order, in.dy, {range}, home});
    copy(home, range.first * D, dy_rows, 0, range.count * D);
    copy(numbers, range.first, row_weights, 0, range.count);
    const ConstTensor up_o = in.up.tensor().part(first * U * D, held * U * D);
    const ConstTensor down_o = in.down.tensor().part(first * D * F, held * D * F);
    expert_rows_activate(stream, {owned, pieces, x_rows, up_o, buffers});
    expert_rows_backward(
        stream, {owned, pieces, dy_rows, row_weights, up_o, down_o, row_d_weights, true, buffers});
    if (!weighs) copy(row_d_weights, 0, numbers, range.first, range.count);
    copy(rows, 0, home, range.first * D, range.count * D);
    expert_rows_gradients(stream,
                          {owned, pieces, without_rows, x_rows, dy_rows,
                           out[kDUp].tensor().part(first * U * D, held * U * D),
                           out[kDDown].tensor().part(first * D * F, held * D * F), buffers});
  }
  if (weighs) {
    expert_input_weights(stream, {shape, order, home, in.x, out[kDWeights]});
  } else {
    expert_rows_to_choices(stream, {shape, order, numbers, out[kDWeights]});
  }
  const ConstTensor back = weighs ? ConstTensor(in.weights) : ConstTensor{};
  expert_combine(stream, {shape, order, home, back, {}, d_sum, {}});
  experts_input_gradient(stream, {d_sum, {}, shared, out[kDX]});
  stream.synchronize();
  return out;
}

Values part(const Values& values, std::int64_t first, std::int64_t count) {
  return {values.begin() + first, values.begin() + first + count};
}
void add(const Values& values, double factor, Values& sum, std::int64_t first) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum[static_cast<std::size_t>(first) + i] += factor * values[i];
  }
}

// Token by token, expert by expert.
std::vector<Values> expected(const Case& c, const Tensors& in) {
  const ExpertsShape& s = c.shape;
  const std::int64_t D = s.width, F = s.ffn_width, U = s.up_width();
  const Values x = in.x.values(), dy = in.dy.values(), up = in.up.values(), down = in.down.values();
  const Values weights = in.weights.values(), shared = in.shared.values();
  std::vector<Values> out{Values(x.size()), Values(weights.size()), Values(x.size()),
                          Values(up.size()), Values(down.size())};
  const ActivationShape activation{s.activation, 1, F};
  for (std::int64_t i = 0; i < s.tokens * s.per_token; ++i) {
    const std::int64_t e = c.chosen[static_cast<std::size_t>(i)], t = i / s.per_token;
    if (e < 0) continue;
    const double w = weights[static_cast<std::size_t>(i)];
    const Values x_t = part(x, t * D, D), dy_t = part(dy, t * D, D);
    const double on_input = s.weighs_input ? w : 1.0, on_output = s.weighs_input ? 1.0 : w;
    Values read = x_t;
    for (double& value : read) value *= on_input;
    const Values up_e = part(up, e * U * D, U * D), down_e = part(down, e * D * F, D * F);
    const Values up_row = oracle::linear_forward({1, D, U}, read, up_e, {});
    const Values a = oracle::activation_forward(activation, up_row);
    add(oracle::linear_forward({1, F, D}, a, down_e, {}), on_output, out[kY], t * D);
    const Values d_a = oracle::linear_backward_input({1, F, D}, dy_t, down_e);
    Values weighted = d_a;
    for (double& value : weighted) value *= on_output;
    const Values d_up = oracle::activation_backward(activation, up_row, weighted);
    const Values d_read = oracle::linear_backward_input({1, D, U}, d_up, up_e);
    out[kDWeights][static_cast<std::size_t>(i)] =
        s.weighs_input ? oracle::dot(d_read, x_t) : oracle::dot(a, d_a);
    add(d_read, on_input, out[kDX], t * D);
    add(oracle::linear_backward_weight({1, D, U}, d_up, read), 1.0, out[kDUp], e * U * D);
    add(oracle::linear_backward_weight({1, F, D}, dy_t, a), on_output, out[kDDown], e * D * F);
  }
  if (c.shares) {
    add(shared, 1.0, out[kY], 0);
    add(shared, 1.0, out[kDX], 0);
  }
  return out;
}

std::vector<Case> cases(DType dtype) {
  std::vector<Case> all;
  for (const Routed& each : routed_shapes()) {
    all.push_back({each.shape, dtype, each.chosen, each.number % 2 == 0});
    all.push_back(all.back());
    all.back().shape.weighs_input = true;
  }
  return all;
}

class Experts : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, Experts, test::compute_types(), test::type_name);

TEST_P(Experts, BothDirectionsMatchTheOracleOnAnyNumberOfThreads) {
  for (const Case& c : cases(GetParam())) {
    const Tensors in(c);
    const Outputs out =
        test::on_any_number_of_threads([&](Stream& stream) { return both_ways(stream, c, in); });
    const std::vector<Values> values = expected(c, in);
    // What lies between the matmuls is rounded to 16 bits, up to four times on the way to an output.
    test::Tolerance tolerance = test::rounded_once(GetParam()).times(4.0);
    if (GetParam() != DType::kF32)
      tolerance.floor += 12.0 * test::rounded_once(GetParam()).relative;
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(test::close(out[i], values[i], tolerance)) << "output " << i;
    }
  }
}

TEST_P(Experts, BitsDontDependOnTheBuffersRows) {
  ExpertsShape shape{.tokens = 1300, .width = 16, .experts = 3, .ffn_width = 12, .per_token = 2};
  for (const Routes kind : {Routes::kRandom, Routes::kFirstExperts}) {
    Case c{shape, GetParam(), routes(shape, kind, 3), true};
    const Tensors in(c);
    const auto stream = test::compute_stream(2);
    c.shape.buffer_rows = 2600;
    const Outputs whole = both_ways(*stream, c, in);
    for (const std::int64_t rows : {512, 513, 1100, 2048}) {
      c.shape.buffer_rows = rows;
      const Outputs rounds = both_ways(*stream, c, in);
      for (std::size_t i = 0; i < whole.size(); ++i) {
        EXPECT_TRUE(test::same_bits(rounds[i], whole[i])) << rows << " rows, output " << i;
      }
    }
  }
}

TEST_P(Experts, InStepsHaveTheSameBits) {
  for (const Case& c : cases(GetParam())) {
    const Tensors in(c);
    const auto stream = test::compute_stream(2);
    const Outputs at_once = both_ways(*stream, c, in);
    for (const int owners : {1, c.shape.experts % 2 == 0 ? 2 : static_cast<int>(c.shape.experts)}) {
      const Outputs steps = in_steps(*stream, c, in, owners);
      for (std::size_t i = 0; i < at_once.size(); ++i) {
        EXPECT_TRUE(test::same_bits(steps[i], at_once[i]))
            << c.shape.tokens << " tokens, " << owners << " owners, output " << i;
      }
    }
  }
}

TEST_P(Experts, ATokensResultHasTheSameBitsWhateverOthersChoose) {
  ExpertsShape shape{.tokens = 90, .width = 24, .experts = 5, .ffn_width = 16, .per_token = 2};
  shape.buffer_rows = experts_buffer_rows(shape);
  const auto stream = test::compute_stream();
  Case c{shape, GetParam(), routes(shape, Routes::kRandom, 9), false};
  const Tensors in(c);
  const Outputs before = both_ways(*stream, c, in);
  Case other = c;
  for (std::size_t i = 2; i < other.chosen.size(); ++i) other.chosen[i] = c.chosen[0];
  for (std::size_t i = 3; i < other.chosen.size(); i += 2) other.chosen[i] = c.chosen[1];
  const Outputs after = both_ways(*stream, other, Tensors(other));
  for (const Output output : {kY, kDX}) {
    const std::int64_t D = shape.width;
    EXPECT_TRUE(
        test::same_bits(before[output].tensor().part(0, D), after[output].tensor().part(0, D)));
  }
}

TEST_P(Experts, WithoutRowsHaveZeroGradients) {
  ExpertsShape shape{.tokens = 20, .width = 8, .experts = 4, .ffn_width = 6, .per_token = 1};
  shape.buffer_rows = experts_buffer_rows(shape);
  const Case c{shape, GetParam(), std::vector<std::int32_t>(20, 1), false};
  const Outputs out = both_ways(*test::compute_stream(), c, Tensors(c));
  for (const Output output : {kDUp, kDDown}) {
    const Values values = out[output].values();
    const std::size_t numel = values.size() / 4;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i / numel != 1) {
        ASSERT_EQ(values[i], 0.0);
        ASSERT_FALSE(std::signbit(values[i]));
      }
    }
  }
}

}  // namespace
}  // namespace sherd::kernels
