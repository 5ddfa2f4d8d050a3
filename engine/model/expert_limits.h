/// What routers on GPUs can't exceed, for checks of recipes.
#pragma once

#include "kernels/router.h"

namespace sherd::model {

/// Experts; each of several groups counts as two more.
inline constexpr std::int64_t kMostGpuExperts = kernels::kMostGpuExperts;

}  // namespace sherd::model
