/// Trainings whose traffic is counted on every rank.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "sharding/mesh/process_groups.h"
#include "tests/support/runs/counted_traffic.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {

/// One rank's training.
struct CountedTraining {
  sharding::Rank& rank;
  engine::TrainingStep& training_step;
  const engine::NextBatch& next_batch;
  Counts& counts;  ///< sent since the last clear()
};

/// `options`: with `setup` applied. What building the model sends, such as initial values, counts.
inline void run_counted(const engine::TrainingOptions& options, const RunShape& setup,
                        const std::function<void(const CountedTraining&)>& body) {
  run_ranks(setup, [&](sharding::Rank& rank) {
    Counts counts;
    rank.groups->wrap_with([&](std::unique_ptr<sharding::Communicator> inner) {
      return std::make_unique<Counting>(std::move(inner), counts);
    });
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    std::vector<std::int32_t> memory;
    const engine::NextBatch next_batch = tokens_for(options, rank, memory);
    rank.guard([&] { body({rank, training_step, next_batch, counts}); });
  });
}

/// Trains two steps; what every rank sends in each must be what was planned.
inline void expect_steps_as_planned(engine::TrainingOptions options, const RunShape& setup) {
  options = applied(std::move(options), setup);
  run_counted(options, setup, [&](const CountedTraining& training) {
    const int rank = training.rank.rank;
    const Counts expected = planned(options, training.rank.mesh, rank);
    for (int step = 0; step < 2; ++step) {
      training.counts.clear();
      training.training_step.run(step, training.next_batch);
      EXPECT_EQ(training.counts, expected)
          << name_of(setup) << ", rank " << rank << ", step " << step << "\nsent\n"
          << text_of(training.counts) << "planned\n"
          << text_of(expected);
    }
  });
}

}  // namespace sherd::testing
