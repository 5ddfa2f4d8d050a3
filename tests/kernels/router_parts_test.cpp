// Routers of ranks that have parts of the same sequences.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/router_case.h"

namespace sherd::kernels {
namespace {

// Of two ranks one has the outer quarters of each row, as in a ring, the other the inner ones.
RowPart part_of(const Inputs& whole, int rank) {
  const std::int64_t run = whole.shape.positions / 4;
  return {.positions = whole.shape.positions,
          .first = rank * run,
          .gap_at = run,
          .gap = rank == 0 ? 2 * run : 0};
}

// What rank `rank` has of the numbers of each token, `width` of them.
Values values_of_part(const Inputs& whole, const Values& numbers, std::int64_t width, int rank) {
  const std::int64_t own = whole.shape.positions / 2;
  Values values;
  for (std::int64_t t = 0; t < whole.shape.sequences * own; ++t) {
    const auto from = numbers.begin() + part_of(whole, rank).token_of(t, own) * width;
    values.insert(values.end(), from, from + width);
  }
  return values;
}

// What one of them decides, with `counts` for itself, before losses are formed.
Outputs forward_of_part(const Inputs& whole, Inputs& in, int rank, const Tensor& counts) {
  const auto stream = test::compute_stream();
  in.shape.positions /= 2;
  in.logits = values_of_part(whole, whole.logits, in.shape.experts, rank);
  const std::int64_t choices = in.shape.tokens() * in.shape.per_token, E = in.shape.experts;
  Outputs out{{DType::kI32, choices},
              {DType::kF32, choices},
              {DType::kI32, in.shape.sequences * E},
              {DType::kF32, in.shape.balance_groups() * (E + 2)}};
  const OwnedTensor logits(DType::kF32, in.logits), previous(in.previous);
  const OwnedTensor starts(whole.starts), lengths(whole.lengths);
  router_forward(*stream, {.shape = in.shape,
                           .logits = logits,
                           .bias = {},
                           .documents = {starts, lengths, {}},
                           .part = part_of(whole, rank),
                           .chosen = out[kChosen],
                           .weights = out[kWeights],
                           .counts = counts,
                           .previous_counts = in.previous.empty() ? ConstTensor{} : previous});
  stream->synchronize();
  return out;
}

void form_losses(const Inputs& in, const ConstTensor& rank_counts, Outputs& out) {
  const auto stream = test::compute_stream();
  const OwnedTensor logits(DType::kF32, in.logits), previous(in.previous);
  router_losses(*stream, {.shape = in.shape,
                          .logits = logits,
                          .chosen = out[kChosen],
                          .rank_counts = rank_counts,
                          .counts = out[kCounts],
                          .balance = out[kBalance],
                          .previous_counts = in.previous.empty() ? ConstTensor{} : previous});
  stream->synchronize();
}

// The second row ends in padding.
Inputs two_rows(BalanceScope scope) {
  Inputs in{.shape = {.sequences = 2,
                      .positions = 12,
                      .experts = 5,
                      .per_token = 2,
                      .normalise = true,
                      .scope = scope,
                      .balance = 0.7f,
                      .z = 0.2f},
            .logits = {},
            .starts = {0, 12, 24},
            .lengths = {12, 8}};
  for (int i = 0; i < 24 * 5; ++i) in.logits.push_back(std::sin(i * i + 1.0));
  if (scope == BalanceScope::kPreviousStep) in.previous = {3, 9, 1, 4, 7, 12};
  return in;
}

TEST(RouterParts, HaveTheLossesAndGradientsOfWholeSequences) {
  const auto stream = test::compute_stream();
  for (const BalanceScope scope :
       {BalanceScope::kSequence, BalanceScope::kMicroBatch, BalanceScope::kPreviousStep}) {
    const Inputs whole = two_rows(scope);
    const Outputs routed = forward(*stream, whole);
    const Values expected = routed[kBalance].values();
    const Values d_whole = backward(*stream, whole, routed, Values(48, 0.25), 2.0f).values();
    std::vector<Inputs> parts(2, whole);
    OwnedTensor counts(DType::kI32, 2 * 2 * 5);
    std::vector<Outputs> outs;
    for (int rank = 0; rank < 2; ++rank) {
      outs.push_back(forward_of_part(whole, parts[static_cast<std::size_t>(rank)], rank,
                                     counts.tensor().part(rank * 10, 10)));
    }
    Values losses(expected.size(), 0.0);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      form_losses(parts[rank], counts, outs[rank]);
      EXPECT_EQ(outs[rank][kCounts].values(), routed[kCounts].values());
      const Values balance = outs[rank][kBalance].values();
      for (std::size_t i = 0; i < balance.size(); ++i) {
        const bool is_slope = i % 7 < 5;
        EXPECT_EQ(balance[i], is_slope ? expected[i] : balance[i]) << "an expert's slope";
        losses[i] += is_slope ? expected[i] / 2.0 : balance[i];
      }
      EXPECT_EQ(backward(*stream, parts[rank], outs[rank], Values(24, 0.25), 2.0f).values(),
                values_of_part(whole, d_whole, 5, static_cast<int>(rank)));
    }
    for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-6);
  }
}

}  // namespace
}  // namespace sherd::kernels
