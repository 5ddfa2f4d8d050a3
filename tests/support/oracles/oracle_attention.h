/// kernels/attention.h in double precision, with the whole S x S matrix. `mask` holds dropout's
/// factors [B, H, S, S].
#pragma once

#include "kernels/attention.h"
#include "tests/support/oracles/oracle_values.h"

namespace sherd::oracle {

struct Attention {
  Values out, lse;
  Values magnitudes;  ///< of each element of out, what its terms' absolute values add up to
};
Attention attention_forward(const kernels::AttentionShape& shape, const Values& qkv,
                            const Values& mask);

/// `out` is what the forward stored: rounded to the tensor's type, it enters the gradient through
/// <dout, out>, and oracle and kernel must start from the same numbers.
/// `magnitudes`: if given, each element's sum with its terms' absolute values, which an error in
/// every probability and every score's gradient is to be measured by.
Values attention_backward(const kernels::AttentionShape& shape, const Values& qkv,
                          const Values& mask, const Values& out, const Values& dout,
                          Values* magnitudes = nullptr);

}  // namespace sherd::oracle
