/// A call of a router (kernels/router.h) with numbers of a test: B sequences of S tokens, E experts, k of them for
/// each token.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/router.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

enum Output { kChosen, kWeights, kCounts, kBalance };

struct Inputs {
  RouterShape shape;
  Values logits, bias{};
  std::vector<std::int32_t> starts{}, lengths{}, previous{};
};

inline Outputs forward(Stream& stream, const Inputs& in) {
  const RouterShape& shape = in.shape;
  const std::int64_t T = shape.tokens(), E = shape.experts, k = shape.per_token;
  const OwnedTensor logits(DType::kF32, in.logits), bias(DType::kF32, in.bias);
  const OwnedTensor starts(in.starts), lengths(in.lengths), previous(in.previous);
  Outputs out{{DType::kI32, T * k},
              {DType::kF32, T * k},
              {DType::kI32, shape.sequences * E},
              {DType::kF32, shape.balance_groups() * (E + 2)}};
  RouterForward args{.shape = shape,
                     .logits = logits,
                     .bias = in.bias.empty() ? ConstTensor{} : bias,
                     .chosen = out[kChosen],
                     .weights = out[kWeights],
                     .counts = out[kCounts],
                     .balance = out[kBalance]};
  if (!in.starts.empty()) args.documents = {starts, lengths, {}};
  if (!in.previous.empty()) args.previous_counts = previous;
  router_forward(stream, args);
  stream.synchronize();
  return out;
}

// Of L = <d_weights, weights> + loss_scale (balance + z).
inline OwnedTensor backward(Stream& stream, const Inputs& in, const Outputs& routed,
                            const Values& d_weights, float loss_scale) {
  const OwnedTensor logits(DType::kF32, in.logits), dw(DType::kF32, d_weights);
  OwnedTensor d_logits(DType::kF32, in.shape.tokens() * in.shape.experts);
  router_backward(stream, {.shape = in.shape,
                           .logits = logits,
                           .chosen = routed[kChosen],
                           .weights = routed[kWeights],
                           .d_weights = dw,
                           .counts = routed[kCounts],
                           .balance = routed[kBalance],
                           .loss_scale = loss_scale,
                           .d_logits = d_logits});
  stream.synchronize();
  return d_logits;
}

}  // namespace sherd::kernels
