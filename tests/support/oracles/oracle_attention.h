/// kernels/attention.h in double precision, with the whole S x S matrix. `mask` holds dropout's
/// factors [B, H, S, S].
#pragma once

#include "kernels/attention.h"
#include "tests/support/oracles/oracle_values.h"

namespace sherd::oracle {

struct Attention {
  Values out, lse;
  Values magnitudes;  ///< for each element of out, the sum of its terms' absolute values
};
Attention attention_forward(const kernels::AttentionShape& shape, const Values& qkv,
                            const Values& mask);

/// `out` is the stored forward output, rounded to the tensor's type. It enters the gradient through
/// <dout, out>, and oracle and kernel must start from the same numbers.
/// `magnitudes`: if given, gets each element's sum of its terms' absolute values. Errors in
/// probabilities and in the gradients of scores are measured relative to it.
Values attention_backward(const kernels::AttentionShape& shape, const Values& qkv,
                          const Values& mask, const Values& out, const Values& dout,
                          Values* magnitudes = nullptr);

}  // namespace sherd::oracle
