#include "optim/moment_kinds.h"

#include "kernels/eight_bits.h"
#include "optim/adafactor.h"
#include "optim/eight_bits.h"
#include "optim/matrices/dion.h"

namespace sherd::optim {

bool is_factor(std::string_view kind) {
  return kind == kRowKind || kind == kColumnKind || kind == kDionBasisKind;
}

std::vector<std::int64_t> shape_of_kind(std::string_view kind, const OptimizerOptions& options,
                                        const ParameterSpec& parameter) {
  const std::vector<std::int64_t>& shape = parameter.shape;
  if (kind == kRowKind) return {shape.front()};
  if (kind == kColumnKind) return {shape.back()};
  if (kind == kDionBasisKind) return dion_basis_shape(options, parameter);
  if (form_of(kind, options.moment_type).elements == 1) return shape;
  if (shape.back() % kernels::kEightBitBlock != 0) {
    return {kernels::eight_bit_blocks(parameter.numel())};
  }
  std::vector<std::int64_t> blocks = shape;
  blocks.back() /= kernels::kEightBitBlock;
  return blocks;
}

}  // namespace sherd::optim
