#include "optim/compression.h"

#include <algorithm>
#include <cmath>

#include "kernels/sparse.h"
#include "optim/sparse_sum.h"

namespace sherd::optim {

double SparseOptions::ratio_in(std::int64_t epoch) const {
  if (epoch >= warmup_epochs) return compress_ratio;
  const double coeff = warmup_coeff > 0.0
                           ? warmup_coeff
                           : std::pow(compress_ratio, 1.0 / static_cast<double>(warmup_epochs + 1));
  return std::max(compress_ratio, std::pow(coeff, static_cast<double>(epoch + 1)));
}

bool has_velocity(const SparseOptions& options) {
  return options.momentum_correction && options.momentum > 0.0;
}

bool is_sparse(const ParameterSpec& parameter) {
  return parameter.shape.size() > 1 && parameter.shape[0] > 1;
}

std::int64_t sparse_entries(double ratio, const ParameterSpec& parameter) {
  std::int64_t entries = 0;
  const std::int64_t numel = parameter.numel();
  for (std::int64_t first = 0; first < numel; first += kSparseChunk) {
    entries += kernels::num_chosen(ratio, std::min(kSparseChunk, numel - first));
  }
  return entries;
}

}  // namespace sherd::optim
