/// CUDA form of kernels/cut_cross_entropy.h, like the forms in kernels/cuda/forms.h.
#pragma once

#include "kernels/cut_cross_entropy.h"

namespace sherd::kernels::cuda {

void logit_maxima(Stream& stream, const CutCrossEntropy& args);
void exponential_sums(Stream& stream, const CutCrossEntropy& args);
void cut_cross_entropy(Stream& stream, const CutCrossEntropy& args);

}  // namespace sherd::kernels::cuda
