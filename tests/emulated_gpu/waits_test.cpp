// Waits that no short training run needs, on the fake CUDA runtime and NCCL: what they order is made to happen here.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "core/cuda_device.h"
#include "engine/generate/decoder.h"
#include "engine/train/pipeline/channels.h"
#include "engine/train/token_feed.h"
#include "kernels/pointwise.h"
#include "tests/emulated_gpu/on_machine.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using Place = RunShape::Place;
using Ids = std::vector<std::int32_t>;

// Ranks with a GPU each, and memory for a training.
void run_ranks_on_gpus(const engine::TrainingOptions& options, const RunShape& setup,
                       const std::function<void(sharding::Rank&)>& body) {
  engine::LaunchOptions launch = launch_options(setup);
  place_training(launch, setup, options);
  engine::run_ranks(launch, body);
}

// A step's micro-batches in order, and then those of a step that is played again. The compute stream copies what it
// gets; the host waits at the end of each step alone.
TEST(NcclWaits, MicroBatchesArriveInTheirOrderAndWhenAskedForAgain) {
  constexpr int kMicroSteps = 5;
  engine::TrainingOptions options = tiny_training(tiny_model(false));
  options.num_micro_steps = kMicroSteps;
  const auto expected = [&](std::int64_t step, std::int64_t micro_step) {
    Ids inputs(static_cast<std::size_t>(options.model.tokens())), targets = inputs;
    fill_tokens(options.model, step, micro_step, inputs.data(), targets.data());
    return inputs;
  };
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    on_machine(1, seed, [&] {
      run_ranks_on_gpus(
          options, {.num_micro_steps = kMicroSteps, .place = Place::kGpus},
          [&](sharding::Rank& rank) {
            std::atomic<std::int64_t> filled = 0;
            engine::TokenFeed feed(
                options, rank,
                [&](std::int64_t step, std::int64_t micro_step, const data::Batch& batch) {
                  fill_tokens(options.model, step, micro_step, batch.inputs.as<std::int32_t>(),
                              batch.targets.as<std::int32_t>());
                  ++filled;
                });
            // The batch after this one is there, too, so that it is on its way.
            const auto await = [&](std::int64_t number) {
              for (int i = 0; i < 1000 && filled < number + 2; ++i) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
              }
              std::this_thread::sleep_for(std::chrono::milliseconds(1));
            };
            const auto pinned = pinned_arena_memory(kMicroSteps * options.model.tokens() * 4);
            const auto play = [&](std::int64_t step, int num_micro_steps) {
              auto* seen = reinterpret_cast<std::int32_t*>(pinned->data());
              const std::int64_t tokens = options.model.tokens();
              for (int micro_step = 0; micro_step < num_micro_steps; ++micro_step) {
                await(step * kMicroSteps + micro_step);
                const engine::TokenBatch batch = feed.next(step, micro_step);
                rank.compute().copy(batch.inputs.data, seen + micro_step * tokens, tokens * 4);
              }
              rank.compute().synchronize();
              for (int micro_step = 0; micro_step < num_micro_steps; ++micro_step, seen += tokens) {
                EXPECT_EQ(Ids(seen, seen + tokens), expected(step, micro_step))
                    << "step " << step << ", micro-step " << micro_step << ", seed " << seed;
              }
            };
            feed.start(0);
            rank.guard([&] {
              play(0, kMicroSteps);
              play(1, 3);            // ends in the middle, with the next one on its way
              play(1, kMicroSteps);  // again
            });
          });
    });
  }
}

// A text of several passes, of which only the last has logits that the host waits for.
TEST(NcclWaits, TheTokensOfAPassStayUntilTheyAreCopied) {
  engine::TrainingOptions options = tiny_training(tiny_model(false));
  options.model.sequences = 1;
  options.model.cached_positions = 6 * options.model.seq_length;
  Ids text(static_cast<std::size_t>(5 * options.model.seq_length));
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<std::int32_t>(i * i % static_cast<std::size_t>(options.model.vocab_size));
  }
  const auto last_row = [&](std::int64_t first) {
    std::vector<float> last;
    run_ranks_on_gpus(options, {.place = Place::kGpus}, [&](sharding::Rank& rank) {
      engine::ShardedModel model(options, rank);
      const sharding::MirroredBuffer inputs(rank, engine::batch_buffers(options)[0]);
      rank.guard([&] {
        engine::Decoder decoder(model, inputs);
        decoder.logits(text, first, [&](std::int64_t, std::span<const float> row) {
          last.assign(row.begin(), row.end());
        });
      });
    });
    return last;
  };
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    on_machine(1, seed, [&] {
      const std::vector<float> of_all = last_row(0);
      EXPECT_EQ(last_row(std::ssize(text) - 1), of_all) << "seed " << seed;
    });
  }
}

// The head's rank has them, and tells the others.
TEST(NcclWaits, EveryRankOfAPipelineHasTheLogits) {
  engine::TrainingOptions options = tiny_training(tiny_model(false));
  options.model.sequences = 1;
  const Ids text = {7, 3, 1, 40, 22};
  const auto logits = [&](const RunShape& setup) {
    std::vector<std::vector<float>> of_ranks(static_cast<std::size_t>(setup.world_size));
    run_ranks_on_gpus(options, setup, [&](sharding::Rank& rank) {
      engine::ShardedModel model(options, rank);
      const sharding::MirroredBuffer inputs(rank, engine::batch_buffers(options)[0]);
      rank.guard([&] {
        engine::Decoder decoder(model, inputs);
        std::vector<float>& own = of_ranks[static_cast<std::size_t>(rank.rank)];
        decoder.logits(text, 0, [&](std::int64_t, std::span<const float> row) {
          own.insert(own.end(), row.begin(), row.end());
        });
      });
    });
    return of_ranks;
  };
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    std::vector<float> one;
    on_machine(1, seed, [&] { one = logits({.place = Place::kGpus})[0]; });
    ASSERT_EQ(std::ssize(one), std::ssize(text) * options.model.vocab_size);
    on_machine(2, seed, [&] {
      for (const std::vector<float>& own :
           logits({.world_size = 2, .axes = {{"pipeline", 2}}, .place = Place::kGpus})) {
        EXPECT_EQ(own, one) << "seed " << seed;
      }
    });
  }
}

// Memory that is a message's in one phase and something else's in the next, and no host that waits between steps.
TEST(NcclWaits, MessagesAndUpdatesLeaveOneAnothersMemoryAlone) {
  constexpr int kSteps = 5;
  constexpr auto kForwards = engine::Direction::kForward;
  const RunShape setup{
      .world_size = 2, .axes = {{"pipeline", 2}}, .stage = 0, .place = Place::kGpus};
  const engine::TrainingOptions options = applied(tiny_training(tiny_model(false)), setup);
  const std::int64_t message = options.model.residual_tokens() * options.model.width;
  const BufferSpec update{"update", Category::kWorkspace, DType::kF32, 4 * message, kUpdate};
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    on_machine(2, seed, [&] {
      engine::LaunchOptions launch = launch_options(setup);
      place_ranks(launch, setup, [&](int r) {
        const engine::RankPipeline pipeline = engine::rank_pipeline(options, mesh_of(setup), r);
        auto buffers = engine::channel_buffers(engine::channel_ends(pipeline, mesh_of(setup), r),
                                               options.model);
        buffers.push_back(update);
        return buffers;
      });
      std::vector<float> values(static_cast<std::size_t>(kSteps * message));
      std::iota(values.begin(), values.end(), 1.0f);
      const auto bytes = std::ssize(values) * 4;
      const auto source = pinned_arena_memory(bytes), seen = pinned_arena_memory(bytes);
      std::memcpy(source->data(), values.data(), static_cast<std::size_t>(bytes));
      engine::run_ranks(launch, [&](sharding::Rank& rank) {
        const engine::RankPipeline pipeline = engine::rank_pipeline(options, rank.mesh, rank.rank);
        engine::Channels channels(pipeline, options.model, rank);
        const Buffer updated = rank.memory->acquire(update);
        Stream& compute = rank.compute();
        rank.guard([&] {
          for (std::int64_t step = 0; step < kSteps; ++step) {
            rank.memory->enter(kForward);
            channels.begin();
            const std::int64_t at = step * message * 4;
            if (pipeline.place == 0) {
              const Tensor outbox = channels.outbox(0, kForwards);
              compute.copy(source->data() + at, outbox.data, outbox.bytes());
              channels.send(0, kForwards, 0);
            } else {
              const Tensor inbox = channels.receive(0, kForwards, 0);
              compute.copy(inbox.data, seen->data() + at, inbox.bytes());
              channels.release(0, kForwards);
            }
            channels.finish();
            rank.memory->enter(kUpdate);
            kernels::fill_zero(compute, updated.tensor());
          }
        });
      });
      const auto* arrived = reinterpret_cast<const float*>(seen->data());
      EXPECT_EQ(std::vector(arrived, arrived + values.size()), values) << "seed " << seed;
    });
  }
}

}  // namespace
}  // namespace sherd::testing
