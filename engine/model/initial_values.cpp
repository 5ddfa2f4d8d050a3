#include "engine/model/initial_values.h"

#include <optional>

#include "engine/model/adapter.h"
#include "engine/model/rng_sites.h"
#include "kernels/pointwise.h"

namespace sherd::model {

void fill_initial_values(Stream& stream, std::uint64_t seed, const ParameterSpec& parameter,
                         const std::vector<Box>& held, std::int64_t columns, std::int64_t first,
                         Tensor out) {
  const InitialValue& initial = parameter.initial;
  const std::optional<float> bound = uniform_bound(parameter);
  if (!bound && initial.stddev == 0.0f) {
    return kernels::fill_constant(stream, out, initial.mean);
  }
  const kernels::RandomAddress address = initial_value_address(seed, parameter.index);
  for_each_run(held, columns, first, out.numel, [&](const BoxRun& run) {
    const Tensor part = out.part(run.in_part - first, run.count);
    if (bound) return kernels::fill_uniform(stream, part, address, run.in_tensor, *bound);
    kernels::fill_normal(stream, part, address, run.in_tensor, initial.mean, initial.stddev);
  });
}

std::vector<Box> whole_box(const ParameterSpec& parameter) {
  const std::int64_t rows = parameter.shape[0];
  return {{0, rows, 0, parameter.numel() / rows}};
}

}  // namespace sherd::model
