/// Attention, forward and backward, at the place of a test's tensors
/// (tests/support/devices/place.h).
#pragma once

#include <functional>

#include "kernels/attention.h"
#include "tests/support/devices/place.h"

namespace sherd::test {

enum AttentionOutput : std::size_t { kOut, kLse, kDqkv };

/// `qkv` and `dout` must outlive the result. `documents`, if given, copies the documents to the
/// place.
inline Work attention_both_ways(const kernels::AttentionShape& shape, const OwnedTensor& qkv,
                                const OwnedTensor& dout, const kernels::Dropout& dropout,
                                std::function<kernels::Documents(Place&)> documents = {}) {
  return [=, &qkv, &dout](Place& place) {
    const DType type = qkv.tensor().dtype;
    Outputs out{{type, dout.numel()},
                {DType::kF32, shape.tokens() * shape.query_heads},
                {type, qkv.numel()}};
    const ConstTensor in = place.in(qkv);
    const Tensor result = place.out(out[kOut]), lse = place.out(out[kLse]);
    const kernels::Documents where = documents ? documents(place) : kernels::Documents();
    const std::int64_t bytes = kernels::attention_workspace_bytes(shape, type, place.device());
    kernels::attention_forward(place.stream(), {.shape = shape,
                                                .qkv = in,
                                                .dropout = dropout,
                                                .out = result,
                                                .lse = lse,
                                                .workspace = place.scratch(bytes),
                                                .documents = where});
    kernels::attention_backward(place.stream(), {.shape = shape,
                                                 .qkv = in,
                                                 .out = result,
                                                 .lse = lse,
                                                 .dout = place.in(dout),
                                                 .dropout = dropout,
                                                 .dqkv = place.out(out[kDqkv]),
                                                 .workspace = place.scratch(bytes),
                                                 .documents = where});
    place.finish();
    return out;
  };
}

}  // namespace sherd::test
