/// The random addresses of a model: every place that draws random numbers has its own site number.
#pragma once

#include <cstdint>

#include "kernels/philox.h"

namespace sherd::model {

/// Dropout sites, addressed with the training step's number.
inline std::uint32_t embedding_site() {
  return 0;
}
inline std::uint32_t attention_site(std::int64_t block) {
  return static_cast<std::uint32_t>(1 + 3 * block);
}
inline std::uint32_t attention_branch_site(std::int64_t block) {
  return attention_site(block) + 1;
}
inline std::uint32_t mlp_branch_site(std::int64_t block) {
  return attention_site(block) + 2;
}

/// Dropout before the adapter of a target (engine/model/adapter.h), addressed with the training
/// step's number.
inline std::uint32_t adapter_site(std::int64_t block, std::size_t target) {
  constexpr std::int64_t kFirst = std::int64_t{1} << 31, kMostTargets = 16;
  return static_cast<std::uint32_t>(kFirst + block * kMostTargets +
                                    static_cast<std::int64_t>(target));
}

/// Initial values: addressed with a step that no run reaches and the parameter's index as the site.
inline kernels::RandomAddress initial_value_address(std::uint64_t seed, std::uint32_t parameter) {
  return {seed, 0xffffffffu, parameter};
}

}  // namespace sherd::model
