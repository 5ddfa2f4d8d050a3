// Tensors that are passed round a ring: each rank's tensor reaches the next rank during the computation, and is neither
// overwritten before it has been sent nor read before it has arrived.
#include "engine/train/units/ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "core/error.h"
#include "sharding/mesh/waits.h"
#include "tests/support/runs/training_harness.h"
#include "tests/support/values/tensors.h"

namespace sherd::testing {
namespace {

using engine::Ring;
using test::OwnedTensor;
using test::Values;

/// One rank's stream of one name sleeps before everything it does.
class SlowStream final : public engine::Machine {
 public:
  SlowStream(int rank, std::string name) : rank_(rank), name_(std::move(name)) {}
  std::unique_ptr<Stream> make_stream(StreamOptions options) const override {
    if (options.rank == rank_ && options.name == name_) {
      options.hook = [](std::string_view, std::string_view) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      };
    }
    return Machine::make_stream(std::move(options));
  }

 private:
  int rank_;
  std::string name_;
};

void run_ring(int degree, const std::shared_ptr<engine::Machine>& machine,
              const std::function<void(sharding::Rank&, Ring&)>& body) {
  engine::LaunchOptions launch =
      launch_options({.world_size = degree, .axes = {{"context", degree}}});
  if (machine) launch.machine = machine;
  engine::run_ranks(launch, [&](sharding::Rank& rank) {
    rank.guard([&] {
      Ring ring(rank);
      body(rank, ring);
    });
  });
}

Values filled(int value) {
  return Values(5, value);
}

// On any world: in a mesh with other axes, too.
TEST(Ring, NeighboursAreThoseOfTheContextAxis) {
  const sharding::Mesh mesh({{"shard", 2}, {"context", 3}, {"tensor", 2}});
  // Rank = shard * 6 + context * 2 + tensor.
  EXPECT_EQ(engine::ring_neighbours(mesh, 7).next, 9);
  EXPECT_EQ(engine::ring_neighbours(mesh, 7).previous, 11);
  EXPECT_EQ(engine::ring_neighbours(mesh, 10).next, 6);
  EXPECT_EQ(engine::ring_neighbours(mesh, 10).previous, 8);
}

TEST(Ring, WhatIsPassedOnAsOftenAsThereAreRanksIsHomeAgain) {
  for (const int degree : {2, 3, 4, 5}) {
    run_ring(degree, nullptr, [&](sharding::Rank& rank, Ring& ring) {
      OwnedTensor a(DType::kF32, filled(rank.rank)), b(DType::kF32, filled(-1));
      const Tensor places[] = {a.tensor(), b.tensor()};
      for (int step = 1; step <= degree; ++step) {
        ring.pass_on("numbers", places[(step + 1) % 2], places[step % 2]);
        ring.await_passed();
        const int from = (rank.rank - step + degree) % degree;
        EXPECT_EQ(places[step % 2].as<float>()[4], static_cast<float>(from)) << "step " << step;
      }
      ring.await_sent();
    });
  }
}

// Two calls are under way at once, and awaited in their order.
TEST(Ring, CallsAreAwaitedInTheirOrder) {
  run_ring(3, std::make_shared<SlowStream>(1, "ring.in"), [&](sharding::Rank& rank, Ring& ring) {
    OwnedTensor a(DType::kF32, filled(rank.rank)), b(DType::kF32, filled(10 + rank.rank));
    OwnedTensor c(DType::kF32, filled(-1)), d(DType::kF32, filled(-1));
    const int before = (rank.rank + 2) % 3;
    ring.pass_on("first", a, c);
    ring.pass_on("second", b, d);
    ring.await_passed();
    EXPECT_EQ(c.values(), filled(before));
    ring.await_passed();
    EXPECT_EQ(d.values(), filled(10 + before));
    ring.await_sent();
  });
}

// The second call writes what the first one still sends on the rank whose sends are slow.
TEST(Ring, APlaceIsNotWrittenBeforeItHasBeenSent) {
  run_ring(3, std::make_shared<SlowStream>(1, "ring.out"), [&](sharding::Rank& rank, Ring& ring) {
    OwnedTensor a(DType::kF32, filled(rank.rank)), b(DType::kF32, filled(-1));
    ring.pass_on("there", a, b);
    ring.await_passed();
    EXPECT_EQ(b.values(), filled((rank.rank + 2) % 3));
    ring.pass_on("and on", b, a);
    ring.await_passed();
    EXPECT_EQ(a.values(), filled((rank.rank + 1) % 3));
    ring.await_sent();
  });
}

TEST(Ring, AfterTheWaitForSendsAPlaceMayBeWritten) {
  run_ring(3, std::make_shared<SlowStream>(1, "ring.out"), [&](sharding::Rank& rank, Ring& ring) {
    OwnedTensor a(DType::kF32, filled(rank.rank)), b(DType::kF32, filled(-1));
    ring.pass_on("numbers", a, b);
    ring.await_sent();
    std::fill_n(a.tensor().as<float>(), 5, 99.0f);
    ring.await_passed();
    EXPECT_EQ(b.values(), filled((rank.rank + 2) % 3));
  });
}

// The transfer is late when the compute stream asks for it; the wait counts for the axis.
TEST(Ring, WaitingForItCountsAsWaitingForContextRanks) {
  run_ring(2, std::make_shared<SlowStream>(0, "ring.in"), [&](sharding::Rank& rank, Ring& ring) {
    OwnedTensor a(DType::kF32, filled(rank.rank)), b(DType::kF32, filled(-1));
    const Stream& compute = rank.compute();
    ring.pass_on("numbers", a, b);
    EXPECT_EQ(compute.waited().count(), 0);
    ring.await_passed();
    EXPECT_EQ(b.values(), filled(1 - rank.rank));
    ring.await_sent();
    EXPECT_EQ(compute.waited_for(sharding::wait_kind(sharding::kContextAxis)), compute.waited());
    if (rank.rank == 0) {
      EXPECT_GE(compute.waited(), std::chrono::milliseconds(3));
    }
  });
}

TEST(Ring, ARankThatStopsStopsTheOthersWithItsReason) {
  std::atomic<int> told{0};
  EXPECT_THROW(run_ring(3, nullptr,
                        [&](sharding::Rank& rank, Ring& ring) {
                          OwnedTensor a(DType::kF32, 5), b(DType::kF32, 5);
                          if (rank.rank == 1) throw UsageError("enough of this.");
                          try {
                            ring.pass_on("numbers", a, b);
                            ring.await_passed();
                            ring.await_sent();
                            ring.pass_on("numbers", b, a);
                            ring.await_passed();
                          } catch (const PeerError& error) {
                            EXPECT_NE(std::string(error.what()).find("enough of this"),
                                      std::string::npos);
                            ++told;
                            throw;
                          }
                        }),
               UsageError);
  EXPECT_EQ(told, 2);
}

}  // namespace
}  // namespace sherd::testing
