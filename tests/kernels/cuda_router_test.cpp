// Routers on a GPU, and gates of shared experts: the CPU's bits.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/experts.h"
#include "kernels/router.h"
#include "tests/support/devices/place.h"

// B sequences of S tokens, E experts, k of them for each token.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Place;
using test::random_values;
using test::Values;

class CudaRouter : public test::OnGpu {};

struct Case {
  RouterShape shape;
  bool has_bias = false, has_padding = false;
  double step = 0.0;  // logits are multiples of it: many are equal
};

Values logits_of(const Case& c) {
  Values logits = random_values(c.shape.tokens() * c.shape.experts, 1, 3.0);
  for (double& value : logits) {
    if (c.step > 0.0) value = std::round(value / c.step) * c.step;
  }
  return logits;
}

// Forward, totals, backward, and a correction of all biases but the first.
Outputs routed(Place& place, const Case& c) {
  const RouterShape& shape = c.shape;
  const std::int64_t T = shape.tokens(), E = shape.experts, k = shape.per_token;
  const std::int64_t S = shape.positions, B = shape.sequences, groups = shape.balance_groups();
  const OwnedTensor logits(DType::kF32, logits_of(c)), dw(DType::kF32, random_values(T * k, 2));
  const OwnedTensor bias(DType::kF32, random_values(E, 3, 0.3));
  // In each row a document, and padding after it; in the first row there are two.
  std::vector<std::int32_t> starts{0}, lengths, previous;
  for (std::int64_t b = 0; b < B; ++b) {
    if (b == 0) {
      lengths.push_back(3);
      starts.push_back(5);
    }
    lengths.push_back(static_cast<std::int32_t>(b == 0 ? S - 6 : S - b));
    starts.push_back(static_cast<std::int32_t>((b + 1) * S));
  }
  for (std::int64_t e = 0; e < E; ++e) previous.push_back(static_cast<std::int32_t>(3 + e % 5));
  previous.push_back(static_cast<std::int32_t>(4 * E));
  const OwnedTensor starts_of(starts), lengths_of(lengths), previous_of(previous);
  Outputs out{{DType::kI32, T * k},
              {DType::kF32, T * k},
              {DType::kI32, B * E},
              {DType::kF32, groups * (E + 2)},
              {DType::kF32, T * E},
              {DType::kF64, random_values(E + 2, 4)},
              {DType::kF32, random_values(E - 1, 5)}};
  Stream& stream = place.stream();
  const ConstTensor in = place.in(logits);
  const Tensor chosen = place.out(out[0]), weights = place.out(out[1]), counts = place.out(out[2]);
  const Tensor balance = place.out(out[3]);
  RouterForward forward{.shape = shape,
                        .logits = in,
                        .bias = c.has_bias ? place.in(bias) : ConstTensor{},
                        .chosen = chosen,
                        .weights = weights,
                        .counts = counts,
                        .balance = balance};
  if (c.has_padding) forward.documents = {place.in(starts_of), place.in(lengths_of), {}};
  if (shape.scope == BalanceScope::kPreviousStep) forward.previous_counts = place.in(previous_of);
  if (const std::int64_t bytes = router_workspace_bytes(shape, place.device()); bytes > 0) {
    forward.workspace = place.scratch(bytes);
  }
  router_forward(stream, forward);
  router_totals(stream, {shape, counts, balance, place.out(out[5])});
  router_backward(stream, {.shape = shape,
                           .logits = in,
                           .chosen = chosen,
                           .weights = weights,
                           .d_weights = place.in(dw),
                           .counts = counts,
                           .balance = balance,
                           .loss_scale = 0.25f,
                           .d_logits = place.out(out[4])});
  std::vector<std::int64_t> of_a_step(previous.begin(), previous.end() - 1);
  router_correction(stream, {of_a_step, 1, 0.01f, place.out(out[6])});
  place.finish();
  return out;
}

std::vector<Case> cases() {
  const RouterShape small{.sequences = 3, .positions = 37, .experts = 8, .per_token = 2};
  std::vector<Case> all;
  for (const auto score :
       {RouterScore::kSoftmax, RouterScore::kSoftmaxOfChosen, RouterScore::kSigmoid}) {
    for (int k = 1; k <= 4; ++k) {
      RouterShape shape = small;
      shape.score = score;
      shape.per_token = k;
      shape.experts = k == 3 ? 71 : 8;
      shape.normalise = k % 2 == 0;
      shape.scale = 1.5f;
      shape.scope = static_cast<BalanceScope>(k % 3);
      shape.balance = k == 4 ? 0.0f : 0.3f;
      shape.z = k == 2 ? 0.0f : 0.02f;
      all.push_back({shape, k > 2, k % 2 == 0, k == 3 ? 0.5 : 0.0});
    }
  }
  RouterShape groups = small;
  groups.experts = 12;
  groups.score = RouterScore::kSigmoid;
  groups.normalise = true;
  groups.groups = 4;
  groups.kept_groups = 2;
  groups.added_sum = 1e-20f;
  groups.balance = 1e-4f;
  for (const int group_scores : {1, 2}) {
    groups.group_scores = group_scores;
    all.push_back({groups, true, group_scores == 1, 0.25});
  }
  return all;
}

TEST_F(CudaRouter, HasTheCpusBitsForEveryRuleAndLoss) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(fmt::format("score {}, {} of {}, {} groups", static_cast<int>(c.shape.score),
                             c.shape.per_token, c.shape.experts, c.shape.groups));
    const test::Work work = [&](Place& place) { return routed(place, c); };
    EXPECT_TRUE(test::same_bits(test::on_gpu(work), test::on_cpu(work)));
  }
}

// Rows with a gap, of which other ranks have the rest: padding is where whole rows have it, and
// losses count what all ranks have counted.
TEST_F(CudaRouter, OfPartsOfSequencesHasTheCpusBits) {
  for (const BalanceScope scope :
       {BalanceScope::kSequence, BalanceScope::kMicroBatch, BalanceScope::kPreviousStep}) {
    const RouterShape shape{.sequences = 2,
                            .positions = 70,
                            .experts = 9,
                            .per_token = 2,
                            .normalise = true,
                            .scope = scope,
                            .balance = 0.7f,
                            .z = 0.2f};
    const std::int64_t T = shape.tokens(), E = shape.experts, groups = shape.balance_groups();
    const OwnedTensor logits(DType::kF32, random_values(T * E, 1, 3.0));
    const OwnedTensor of_ranks(test::random_tokens(3 * 2 * E, 30, 2));
    const OwnedTensor previous(test::random_tokens(E + 1, 40, 3));
    const OwnedTensor starts(std::vector<std::int32_t>{0, 210, 420}),
        lengths(std::vector<std::int32_t>{210, 150});
    const test::Work work = [&](Place& place) {
      Outputs out{{DType::kI32, T * 2},
                  {DType::kF32, T * 2},
                  {DType::kI32, 2 * E},
                  {DType::kI32, 2 * E},
                  {DType::kF32, groups * (E + 2)}};
      const ConstTensor in = place.in(logits);
      const Tensor chosen = place.out(out[0]);
      const std::int64_t bytes = router_workspace_bytes(shape, place.device());
      const Tensor scratch = bytes > 0 ? place.scratch(bytes) : Tensor();
      const bool counted_before = scope == BalanceScope::kPreviousStep;
      const ConstTensor before = counted_before ? place.in(previous) : ConstTensor();
      router_forward(place.stream(),
                     {.shape = shape,
                      .logits = in,
                      .bias = {},
                      .documents = {place.in(starts), place.in(lengths), {}},
                      .part = {.positions = 210, .first = 35, .gap_at = 35, .gap = 70},
                      .chosen = chosen,
                      .weights = place.out(out[1]),
                      .counts = place.out(out[2]),
                      .previous_counts = before,
                      .workspace = scratch});
      router_losses(place.stream(), {.shape = shape,
                                     .logits = in,
                                     .chosen = chosen,
                                     .rank_counts = place.in(of_ranks),
                                     .counts = place.out(out[3]),
                                     .balance = place.out(out[4]),
                                     .previous_counts = before,
                                     .workspace = scratch});
      place.finish();
      return out;
    };
    const Outputs cpu = test::on_cpu(work);
    EXPECT_TRUE(test::same_bits(test::on_gpu(work), cpu)) << static_cast<int>(scope);
    EXPECT_EQ(cpu[0].values().back(), -1.0) << "the second row ends in padding";
  }
}

// Numbers that no training should have must not hang a GPU or leave its memory.
TEST_F(CudaRouter, ChoosesDifferentExpertsAmongValuesThatAreNotNumbers) {
  const RouterShape shape{.sequences = 1, .positions = 4, .experts = 4, .per_token = 3};
  const double nan = std::nan(""), inf = HUGE_VAL;
  const OwnedTensor logits(DType::kF32, {nan, nan, nan, nan, nan, 1, nan, 2,  //
                                         -inf, -inf, -inf, 0, 3, nan, -inf, nan});
  const test::Work work = [&](Place& place) {
    Outputs out{{DType::kI32, 12}};
    OwnedTensor weights(DType::kF32, 12), counts(DType::kI32, 4), balance(DType::kF32, 6);
    router_forward(place.stream(), {.shape = shape,
                                    .logits = place.in(logits),
                                    .bias = {},
                                    .chosen = place.out(out[0]),
                                    .weights = place.out(weights),
                                    .counts = place.out(counts),
                                    .balance = place.out(balance),
                                    .workspace = place.scratch(4096)});
    place.finish();
    return out;
  };
  const Outputs gpu = test::on_gpu(work);
  EXPECT_TRUE(test::same_bits(gpu, test::on_cpu(work)));
  const Values chosen = gpu[0].values();
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    EXPECT_LT(chosen[i], 4.0);
    EXPECT_TRUE(i % 3 == 0 || chosen[i] > chosen[i - 1]) << i;
  }
}

class CudaGate : public test::OnGpuInEveryType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaGate, test::compute_types(), test::type_name);

TEST_P(CudaGate, OfASharedExpertHasTheCpusBits) {
  for (const auto& [T, D] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {13, 37}, {70, 130}}) {
    SCOPED_TRACE(fmt::format("{} tokens of {}", T, D));
    const OwnedTensor x = filled(T * D, 1), gate = filled(D, 2), shared = filled(T * D, 3);
    const OwnedTensor dy = filled(T * D, 4);
    same_bits_as_cpu(
        [&, T = T, D = D](Place& place) {
          Outputs out{{DType::kF32, T},
                      {GetParam(), T * D},
                      {GetParam(), T * D},
                      {DType::kF32, T},
                      {DType::kF32, random_values(T * D, 5)},
                      {GetParam(), random_values(D, 6)},
                      {DType::kF32, D}};
          Stream& stream = place.stream();
          const ConstTensor x_in = place.in(x), gate_in = place.in(gate);
          const ConstTensor shared_in = place.in(shared), dy_in = place.in(dy);
          const Tensor logits = place.out(out[0]), d_logits = place.out(out[3]);
          gate_logits(stream, {T, D, x_in, gate_in, logits});
          gate_forward(stream, {T, D, logits, shared_in, place.out(out[1])});
          gate_backward(stream, {.tokens = T,
                                 .width = D,
                                 .logits = logits,
                                 .shared = shared_in,
                                 .gate = gate_in,
                                 .dy = dy_in,
                                 .d_shared = place.out(out[2]),
                                 .d_logits = d_logits,
                                 .d_x = place.out(out[4])});
          gate_weight_gradient(stream, {T, D, x_in, d_logits, place.out(out[5]), true});
          gate_weight_gradient(stream, {T, D, x_in, d_logits, place.out(out[6]), false});
          place.finish();
          return out;
        },
        "gate");
  }
}

}  // namespace
}  // namespace sherd::kernels
