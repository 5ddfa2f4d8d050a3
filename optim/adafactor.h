/// Adafactor: second moments of a matrix as a number per row and per column (kernels/adafactor.h).
///
/// Every rank has all of a unit's numbers. The sums of squares of rows and columns are exact: each
/// rank adds those of its own slice, and ranks exchange the sums, kSumsPerMessage at a time. So
/// results don't depend on where slices are cut. The norms of parameters and updates are those of
/// tensor_norms.h. Workspace: ExactSum::kNumbers f64 for each row and column of the largest unit.
#pragma once

#include <string_view>
#include <vector>

#include "optim/optimizer.h"

namespace sherd::optim {

inline constexpr std::string_view kRowKind = "exp_avg_sq_row", kColumnKind = "exp_avg_sq_col";

OptimizerDescriptor adafactor_descriptor();

}  // namespace sherd::optim
