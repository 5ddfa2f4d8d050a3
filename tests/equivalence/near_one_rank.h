/// How near a run on tensor ranks stays to the run of one rank.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/equivalence/distance.h"
#include "tests/equivalence/mesh_case.h"

namespace sherd::testing {

/// After a step that moves nothing.
inline Outcome start_of(engine::TrainingOptions options, const MeshCase& each) {
  options.lr_schedule.lr = 0.0;
  return run(options, each, 1);
}

/// Each tensor is where one rank's is, but for a part `tolerance` of the way that it has gone from the start, and
/// the rounding of its own values.
inline void expect_near(const engine::TrainingOptions& options, const Outcome& cut,
                        const Outcome& one, double tolerance, const std::string& label) {
  const Outcome start = start_of(options, {.tensor = 1});
  for (std::size_t step = 0; step < one.losses.size(); ++step) {
    EXPECT_NEAR(cut.losses[step], one.losses[step], tolerance * one.losses[step]) << label;
    EXPECT_NEAR(cut.grad_norms[step], one.grad_norms[step], tolerance * one.grad_norms[step])
        << label;
  }
  for (const auto& [name, values] : one.parameters) {
    const double way = distance(values, start.parameters.at(name));
    const double rounding = 1e-7 * length(values);
    EXPECT_LE(distance(cut.parameters.at(name), values), tolerance * way + rounding)
        << name << ", " << label;
  }
}

}  // namespace sherd::testing
