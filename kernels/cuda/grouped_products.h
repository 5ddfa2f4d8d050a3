/// The forward products of all experts of a round in one launch of cuDNN
/// (CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL, mode NONE):
///
///   out[r] = x[r] w_e^T        for the rows r of expert e, from offsets[e] to offsets[e + 1]
///
/// Which     products with the experts' matrices as they are in memory, [outputs, inputs]. cuDNN 9.19
///           has no plan for Hopper whose weights are [inputs, outputs], as gradients of inputs
///           need them; they and gradients of matrices stay a launch for each expert
///           (expert_products.h).
/// Rows      A plan is for one number of rows. A launch computes one of few sizes
///           (kernels/device_common/grouped_rows.h). Rows after the last expert's are computed from
///           whatever the buffer holds, and written. Rows are independent, and nobody reads those.
/// Bits      Engine and kernel are the first that cuDNN's heuristics suggest for one expert of
///           kExpertPiece rows that fits the scratch and repeats its bits. So a row's results don't
///           depend on how many rows or experts there are. No real GPU has shown it yet.
/// Scratch   of a workspace of kMatmulWorkspaceBytes: cuDNN's own, then the offsets.
#pragma once

#include <compare>
#include <string>

#include "kernels/device_common/grouped_rows.h"
#include "kernels/device_common/matmul_key.h"

namespace sherd::kernels::cuda {

inline constexpr std::int64_t kGroupOffsetsBytes = 4 * device_common::kMostGroups;
inline constexpr std::int64_t kGroupedScratchBytes =
    device_common::kMatmulWorkspaceBytes - kGroupOffsetsBytes;
static_assert(kGroupedScratchBytes % 256 == 0);

/// Everything that a plan depends on.
struct GroupedKey {
  std::int64_t experts = 0, rows = 0, inputs = 0, outputs = 0;
  DType dtype = DType::kBF16;

  auto operator<=>(const GroupedKey&) const = default;
  std::string text() const;
};

/// x, out: the first row of the launch; w: the first expert's matrix. All at multiples of 16 bytes.
struct GroupedOperands {
  const void *x = nullptr, *w = nullptr;
  void* out = nullptr;
};

/// Errors   UsageError: cuDNN has no plan. `workspace` has kMatmulWorkspaceBytes.
void multiply_grouped_rows(Stream& stream, const GroupedKey& key,
                           const device_common::GroupOffsets& offsets,
                           const GroupedOperands& operands, void* workspace);

}  // namespace sherd::kernels::cuda
