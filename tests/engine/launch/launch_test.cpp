#include "engine/launch/launch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "core/error.h"
#include "core/thread_team.h"
#include "sharding/mesh/process_groups.h"
#include "tests/support/runs/few_threads.h"
#include "tests/support/runs/training_harness.h"
#include "tests/support/values/error_text.h"

namespace sherd::engine {
namespace {

struct Thrower {
  const char* name;
  void (*call)();
};
const Thrower kThrowers[] = {
    {"UsageError", [] { throw UsageError("the usage"); }},
    {"DataError", [] { throw DataError("the data"); }},
    {"PeerError", [] { throw PeerError("the peer"); }},
    {"TrainingError", [] { throw TrainingError("the training"); }},
    {"Interrupted", [] { throw Interrupted("the interrupt"); }},
    {"std::runtime_error", [] { throw std::runtime_error("something else"); }},
};

LaunchOptions launch_of(int world_size, int threads_per_rank = 1) {
  LaunchOptions launch;
  launch.mesh = sharding::Mesh::sharded(world_size);
  launch.threads_per_rank = threads_per_rank;
  return launch;
}

enum class Moment { kBefore, kBetween, kInside, kOnWorker, kWhileBuilding };
constexpr Moment kMoments[] = {Moment::kBefore, Moment::kBetween, Moment::kInside,
                               Moment::kOnWorker, Moment::kWhileBuilding};

std::string text_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return fmt::format("{}: {}", error.exit_code(), error.what());
  } catch (const std::exception& error) {
    return error.what();
  }
  return "(no error)";
}

// Sums over all ranks, again and again, on buffers that die with the body.
class Work {
 public:
  explicit Work(sharding::Rank& rank)
      : rank_(rank),
        buffer_(rank.memory->acquire(
            {"sum", Category::kWorkspace, DType::kF32, 256 * rank.world_size()})),
        done_(rank.make_event()) {}

  void enqueue() {
    using sharding::Purpose;
    rank_.groups->world(Purpose::kReduce).all_reduce(rank_.reduce(), "sum", buffer_.tensor());
    rank_.groups->world(Purpose::kGather).all_gather(rank_.gather(), "sum", other_.tensor());
  }
  void wait() {
    rank_.reduce().record(*done_);
    rank_.compute().wait(*done_);
  }

 private:
  sharding::Rank& rank_;
  Buffer buffer_;
  Buffer other_ = rank_.memory->acquire(
      {"gathered", Category::kWorkspace, DType::kF32, 256 * rank_.world_size()});
  std::unique_ptr<Event> done_;
};

// One rank fails at one moment; the others continue forever unless they are stopped.
struct Failure {
  int world_size = 2;
  int rank = 0;
  Moment moment = Moment::kBefore;
  void (*call)() = nullptr;
};

void fail(const Failure& failure, std::atomic<int>& peers) {
  run_ranks(launch_of(failure.world_size), [&](sharding::Rank& rank) {
    const bool mine = rank.rank == failure.rank;
    const auto at = [&](Moment moment) { return mine && failure.moment == moment; };
    if (at(Moment::kWhileBuilding)) failure.call();
    Work work(rank);
    try {
      rank.guard([&] {
        if (at(Moment::kBefore)) failure.call();
        for (int i = 0; mine ? i < 100 : true; ++i) {
          work.enqueue();
          if (at(Moment::kInside) && i == 3) failure.call();
          if (at(Moment::kOnWorker) && i == 3) rank.gather().run("failing", failure.call);
          work.wait();
          if (at(Moment::kBetween) && i == 3) failure.call();
        }
      });
    } catch (const PeerError& error) {
      if (!mine) {
        ++peers;
        EXPECT_EQ(std::string(error.what()).find(fmt::format("rank {} stopped", failure.rank)), 0u)
            << error.what();
      }
      throw;
    }
  });
}

TEST(RunRanks, ReportsTheErrorOfTheRankThatThrewAndStopsTheOthersWithItsReason) {
  for (const int world : {2, 3}) {
    for (int rank = 0; rank < world; ++rank) {
      for (const Moment moment : kMoments) {
        for (const Thrower& thrower : kThrowers) {
          std::atomic<int> peers{0};
          EXPECT_EQ(text_of([&] {
                      fail({world, rank, moment, thrower.call}, peers);
                    }),
                    text_of(thrower.call))
              << thrower.name << " on rank " << rank << " at moment " << static_cast<int>(moment);
          EXPECT_EQ(peers, world - 1);
        }
      }
    }
  }
}

TEST(RunRanks, ReportsTheErrorOfTheOnlyRank) {
  for (const Moment moment : kMoments) {
    std::atomic<int> peers{0};
    EXPECT_EQ(text_of([&] { fail({1, 0, moment, kThrowers[1].call}, peers); }), "3: the data");
  }
}

TEST(RunRanks, ReportsOneOfTheErrorsIfAllRanksThrow) {
  const std::string text = text_of([] {
    run_ranks(launch_of(4), [](sharding::Rank& rank) {
      rank.guard([&] { throw DataError("rank {} has no file", rank.rank); });
    });
  });
  EXPECT_TRUE(text.starts_with("3: rank ") && text.ends_with(" has no file")) << text;
}

engine::NextBatch throwing_batches(const NextBatch& inner, bool throws, int at_step,
                                   int at_micro_step) {
  return [=](std::int64_t step, std::int64_t micro_step) {
    if (throws && step == at_step && micro_step == at_micro_step) {
      throw DataError("the file was truncated");
    }
    return inner(step, micro_step);
  };
}

// The other ranks are anywhere in their step: gathers promised, gradients on their way. What their
// streams still touch must be there until they have stopped (the address sanitizer looks).
TEST(RunRanks, StopsATrainingWhoseDataFailsOnOneRank) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (int failing = 0; failing < 3; ++failing) {
      const testing::RunShape setup{.world_size = 3,
                                    .num_micro_steps = 2,
                                    .stage = stage,
                                    .prefetch_depth = 2,
                                    .delay_seed = 1u + static_cast<unsigned>(failing)};
      const TrainingOptions options =
          testing::applied(testing::tiny_training(testing::tiny_model(/*tied=*/false)), setup);
      const std::string text = text_of([&] {
        testing::run_ranks(setup, [&](sharding::Rank& rank) {
          ShardedModel model(options, rank);
          TrainingStep step(options, model);
          std::vector<std::int32_t> memory;
          const NextBatch batches =
              throwing_batches(testing::tokens_for(options, rank, memory), rank.rank == failing,
                               /*at_step=*/1, /*at_micro_step=*/failing % 2);
          rank.guard([&] {
            for (int s = 0; s < 3; ++s) step.run(s, batches);
          });
        });
      });
      EXPECT_EQ(text, "3: the file was truncated") << testing::name_of(setup);
    }
  }
}

// Some boundary of some stream of some rank throws: wherever it is, this error comes out.
TEST(RunRanks, StopsATrainingWhoseStreamFailsAnywhere) {
  for (int stage = 1; stage <= 3; ++stage) {
    for (const std::string_view stream : {"compute", "gather", "reduce"}) {
      for (const int at : {4, 9, 17, 33}) {
        std::atomic<int> count{0};
        LaunchOptions launch = launch_of(2);
        launch.hook = [&](std::string_view name, std::string_view) {
          if (name == stream && count.fetch_add(1) == at) throw TrainingError("a stream broke");
        };
        const testing::RunShape setup{.world_size = 2, .stage = stage};
        const TrainingOptions options =
            testing::applied(testing::tiny_training(testing::tiny_model(/*tied=*/true)), setup);
        EXPECT_EQ(text_of([&] {
                    run_ranks(launch, [&](sharding::Rank& rank) {
                      ShardedModel model(options, rank);
                      TrainingStep step(options, model);
                      std::vector<std::int32_t> memory;
                      const NextBatch batches = testing::tokens_for(options, rank, memory);
                      rank.guard([&] {
                        for (int s = 0; s < 4; ++s) step.run(s, batches);
                      });
                    });
                  }),
                  "5: a stream broke")
            << "stage " << stage << ", " << stream << ", boundary " << at;
      }
    }
  }
}

// At stages 1-2 building a model publishes its first parameters: gathers are on their way when this
// rank fails and its memory goes.
TEST(RunRanks, StopsAllRanksIfOneFailsAfterItsModelIsBuilt) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (int failing = 0; failing < 2; ++failing) {
      const testing::RunShape setup{.world_size = 2, .stage = stage, .delay_seed = 3};
      const TrainingOptions options =
          testing::applied(testing::tiny_training(testing::tiny_model(/*tied=*/false)), setup);
      const std::string text = text_of([&] {
        testing::run_ranks(setup, [&](sharding::Rank& rank) {
          ShardedModel model(options, rank);
          if (rank.rank == failing) throw DataError("no such file");
          TrainingStep step(options, model);
          std::vector<std::int32_t> memory;
          const NextBatch batches = testing::tokens_for(options, rank, memory);
          rank.guard([&] { step.run(0, batches); });
        });
      });
      EXPECT_EQ(text, "3: no such file") << "stage " << stage;
    }
  }
}

TEST(RunRanks, WorksWithMoreRanksThanCores) {
  const auto options = testing::tiny_training(testing::tiny_model(/*tied=*/true));
  const auto outcome = [&](int stage) {
    return testing::train(options, {.world_size = 8, .stage = stage, .threads_per_rank = 0}, 2);
  };
  EXPECT_EQ(testing::difference(outcome(0), outcome(3)), "");
}

TEST(RunRanks, GivesEveryRankItsNumberTheWorldAndMemoryOfItsOwn) {
  std::atomic<int> seen{0};
  run_ranks(launch_of(4, 2), [&](sharding::Rank& rank) {
    seen |= 1 << rank.rank;
    EXPECT_EQ(rank.world_size(), 4);
    EXPECT_EQ(rank.groups->world(sharding::Purpose::kGather).rank(), rank.rank);
    EXPECT_EQ(rank.groups->world(sharding::Purpose::kReduce).world_size(), 4);
    EXPECT_EQ(rank.compute().team().num_threads(), 2);
    const Buffer buffer = rank.memory->acquire({"mine", Category::kData, DType::kU8, 10});
    EXPECT_EQ(rank.memory->current_bytes(), 10);
    rank.guard([] {});
  });
  EXPECT_EQ(seen, 15);
}

TEST(LaunchOptions, GivesEveryRankAtLeastOneThread) {
  EXPECT_EQ(launch_of(100'000, 0).compute_threads(), 1);
  EXPECT_EQ(launch_of(2, 3).compute_threads(), 3);
}

// Waiting for a rank that never comes has a limit.
TEST(RunRanks, StopsWithARankThatDoesntCome) {
  LaunchOptions launch = launch_of(2);
  launch.peer_timeout = std::chrono::milliseconds(50);
  const std::string text = text_of([&] {
    run_ranks(launch, [](sharding::Rank& rank) {
      Work work(rank);
      rank.guard([&] {
        if (rank.rank == 0) work.enqueue();
      });
    });
  });
  EXPECT_NE(text.find("4: rank 0 waited 0.05 s for rank 1 in all_"), std::string::npos) << text;
}

// Whichever thread it is, of a rank, a stream or a team: the ranks that have started don't wait for
// those that never will, and all of them end.
TEST(RunRanks, AThreadThatTheMachineRefusesEndsAllRanksWithASentence) {
  for (const int allowed : {0, 1, 4, 7, 10, 20}) {
    EXPECT_EXIT(
        {
          test::allow_threads(allowed);
          const std::string text = text_of([] {
            run_ranks(launch_of(8, 2), [](sharding::Rank& rank) {
              Work work(rank);
              rank.guard([&] {
                for (;;) {
                  work.enqueue();
                  work.wait();
                }
              });
            });
          });
          std::fputs(text.c_str(), stderr);
          std::_Exit(0);
        },
        ::testing::ExitedWithCode(0), "^5: this machine refused a thread for ")
        << allowed;
  }
}

}  // namespace
}  // namespace sherd::engine
