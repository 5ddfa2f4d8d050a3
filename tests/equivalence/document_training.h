/// Trainings on separate documents packed into rows, for tests that compare them bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "engine/data/batcher.h"
#include "engine/train/evaluation.h"
#include "engine/train/token_feed.h"
#include "tests/support/runs/training_harness.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {

/// Texts of 2 to 40 bytes, each a document, in rows of nine tokens or `seq_length`.
class DocumentTraining : public ::testing::Test {
 protected:
  explicit DocumentTraining(std::int64_t seq_length = 9) : seq_length_(seq_length) {
    std::uint64_t state = 1;
    for (int file = 0; file < 90; ++file) {
      std::string text;
      for (int i = 0; i < 2 + file * 17 % 39; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        text.push_back(static_cast<char>((state >> 33) % 41));
      }
      folder_.write((file < 80 ? "train/" : "held/") + std::to_string(file), text);
    }
    dataset_ = data::open_dataset({.path = folder_.file("train"),
                                   .validation_path = folder_.file("held"),
                                   .vocab_size = 41,
                                   .seq_length = seq_length_,
                                   .separate_documents = true});
  }

  data::Batcher batcher(const engine::TrainingOptions& options, const RunShape& setup) const {
    return {dataset_,
            {.seq_length = seq_length_,
             .micro_batch_size = options.model.sequences,
             .num_micro_steps = setup.num_micro_steps,
             .world = mesh_of(setup).degree(sharding::data_axes()),
             .seed = 3}};
  }

  Outcome train(engine::TrainingOptions options, const RunShape& setup, int num_steps,
                int first_step = 0) const {
    options = applied(std::move(options), setup);
    options.separate_documents = true;
    const data::Batcher batches = batcher(options, setup);
    Outcome outcome;
    outcome.parameters = empty_parameters(options.model);
    engine::LaunchOptions launch = launch_options(setup);
    if (setup.place != RunShape::Place::kHost) {
      place_ranks(launch, setup, [&](int r) { return buffers_of(options, setup, r); });
    }
    engine::run_ranks(launch, [&](sharding::Rank& rank) {
      engine::ShardedModel model(options, rank);
      engine::TrainingStep step(options, model);
      step.num_targets = [&](std::int64_t s) { return batches.num_targets(s); };
      engine::TokenFeed feed(options, rank,
                             [&](std::int64_t s, std::int64_t micro, const data::Batch& batch) {
                               batches.fill(s, micro, rank.data_index(), batch);
                             });
      feed.start(first_step);
      engine::Evaluation evaluation(options, model, batches, 4);
      rank.guard([&] {
        for (int s = first_step; s < first_step + num_steps; ++s) {
          const auto result =
              step.run(s, [&](std::int64_t a, std::int64_t b) { return feed.next(a, b); });
          if (rank.rank != 0) continue;
          outcome.losses.push_back(result.loss);
          outcome.grad_norms.push_back(result.grad_norm);
        }
        const engine::EvaluationResult result = evaluation.run(0);
        if (rank.rank == 0) {
          outcome.losses.push_back(result.loss);
          outcome.losses.push_back(static_cast<double>(result.num_tokens));
          outcome.grad_norms.resize(outcome.losses.size());
        }
        collect_parameters(model, outcome.parameters);
      });
    });
    return outcome;
  }

  /// The buffers of a rank on a GPU.
  static std::vector<BufferSpec> buffers_of(const engine::TrainingOptions& options,
                                            const RunShape& setup, int rank) {
    auto buffers = engine::training_buffers(
        options,
        {.mesh = mesh_of(setup), .rank = rank, .num_threads = 1, .device = DeviceKind::kCuda});
    for (const auto& others : {engine::batch_buffers(options),
                               engine::evaluation_buffers(options, mesh_of(setup).world_size())}) {
      buffers.insert(buffers.end(), others.begin(), others.end());
    }
    return buffers;
  }

  const std::int64_t seq_length_;
  test::TempFolder folder_;
  std::shared_ptr<const data::Dataset> dataset_;
};

}  // namespace sherd::testing
