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
  // A tensor rank's part is sparse if the whole parameter is.
  const std::vector<std::int64_t>& shape = parameter.cut ? parameter.cut->shape : parameter.shape;
  return shape.size() > 1 && shape[0] > 1;
}

std::vector<SparseRange> sparse_chunks(const ParameterSpec& parameter) {
  std::vector<SparseRange> chunks;
  std::int64_t begin = 0;  // of the box
  const auto add = [&](std::int64_t numel) {
    for (std::int64_t first = 0; first < numel; first += kSparseChunk) {
      chunks.push_back({begin + first, std::min(kSparseChunk, numel - first)});
    }
    begin += numel;
  };
  if (!parameter.cut) {
    add(parameter.numel());
  } else {
    for (const HeldBox& held : parameter.cut->held) add(held.box.numel());
  }
  return chunks;
}

std::int64_t sparse_entries(double ratio, const ParameterSpec& parameter) {
  std::int64_t entries = 0;
  for (const SparseRange& chunk : sparse_chunks(parameter)) {
    entries += kernels::num_chosen(ratio, chunk.count);
  }
  return entries;
}

}  // namespace sherd::optim
