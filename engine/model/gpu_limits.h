/// What models on GPUs can't exceed, for checks of recipes.
#pragma once

#include "kernels/attention.h"
#include "kernels/router.h"

namespace sherd::model {

/// Experts; each of several groups counts as two more.
inline constexpr std::int64_t kMostGpuExperts = kernels::kMostGpuExperts;
/// Columns of a query, key or value head.
inline constexpr std::int64_t kWidestGpuHead = kernels::kWidestGpuHead;

}  // namespace sherd::model
