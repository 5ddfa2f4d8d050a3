// The waits between streams, each with one stream late (tests/support/devices/late_streams.h): a wait that
// is missing lets another stream read, or overwrite, what the late stream hasn't reached yet.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "sharding/zero/gradient_reduction.h"
#include "sharding/zero/parameter_gather.h"
#include "tests/sharding/sharding_support.h"
#include "tests/support/devices/late_streams.h"

namespace sherd::sharding {
namespace {

constexpr int kLateBlocks = 3;
constexpr const char* kStreams[] = {"compute", "gather", "reduce"};

void on_ranks(int world_size, const std::string& late, const std::function<void(Rank&)>& body) {
  engine::LaunchOptions launch;
  launch.mesh = sharding::Mesh::sharded(world_size);
  launch.threads_per_rank = 1;
  launch.machine = std::make_shared<testing::LateStreams>(late);
  engine::run_ranks(launch, [&](Rank& rank) { body(rank); });
}

float value_of(int version, std::uint32_t parameter, std::int64_t element) {
  return test::number(parameter, static_cast<std::uint64_t>(element),
                      static_cast<std::uint64_t>(version));
}

// Updates and uses parameters as a training step does, but in the compute stream's order.
class Parameters {
 public:
  Parameters(Rank& rank, int stage, bool tied, const GatherOptions& options)
      : rank_(rank),
        tied_(tied),
        units_(test::make_units(test::small_units(kLateBlocks, tied),
                                placement_of(stage, GradSync::kEveryMicroStep), rank)),
        gather_(rank, units_, options) {}

  void update(int version) {
    version_ = version;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      rank_.compute().run("update", [this, u, version] {
        test::fill_slices(units_[u], [=](auto p, auto i) { return value_of(version, p, i); });
      });
      gather_.publish(static_cast<int>(u));
    }
  }

  void step() {
    std::vector<int> uses;
    for (int unit = 0; unit <= kLateBlocks; ++unit) uses.push_back(unit);
    uses.push_back(tied_ ? 0 : kLateBlocks + 1);
    for (int unit = kLateBlocks; unit >= 1; --unit) uses.push_back(unit);
    gather_.plan(uses);
    for (const int unit : uses) use(unit);
  }

  /// What else the slots' memory is for between two steps.
  void use_slots_for_something_else() {
    rank_.compute().run("something else", [this] {
      for (const auto& [data, count] : slots_) {
        std::fill_n(data, count, std::numeric_limits<float>::quiet_NaN());
      }
    });
  }
  int num_wrong() const { return num_wrong_; }

 private:
  void use(int unit) {
    const std::vector<Tensor> views = gather_.get(unit);
    if (units_[unit].placement().parameters_sharded()) {
      std::int64_t& count = slots_[views[0].as<float>()];
      count = std::max(count, units_[unit].layout().numel());
    }
    rank_.compute().run("use", [this, unit, views, version = version_] {
      for (std::size_t p = 0; p < views.size(); ++p) {
        const std::uint32_t index = units_[unit].spec().parameters[p].index;
        for (std::int64_t i = 0; i < views[p].numel; ++i) {
          num_wrong_ += views[p].as<float>()[i] != value_of(version, index, i);
        }
      }
    });
    gather_.release(unit);
  }

  Rank& rank_;
  bool tied_;
  std::vector<UnitState> units_;
  ParameterGather gather_;
  std::map<float*, std::int64_t> slots_;
  int version_ = 0;
  int num_wrong_ = 0;
};

TEST(LateStreams, UsesSeeTheLastUpdateAndNothingElse) {
  for (const char* late : kStreams) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (int world = 1; world <= 3; ++world) {
        for (int depth = 0; depth <= 2; ++depth) {
          on_ranks(world, late, [&](Rank& rank) {
            Parameters parameters(rank, stage, depth == 1, {depth, world != 3});
            rank.guard([&] {
              for (int version = 1; version <= 3; ++version) {
                parameters.update(version);
                parameters.step();
                parameters.step();
              }
            });
            EXPECT_EQ(parameters.num_wrong(), 0)
                << late << " late, stage " << stage << ", world " << world << ", depth " << depth;
          });
        }
      }
    }
  }
}

TEST(LateStreams, AGatherWaitsForWhoeverHadTheSlotsMemoryBeforeTheStep) {
  for (const char* late : kStreams) {
    for (int depth = 0; depth <= 2; ++depth) {
      on_ranks(2, late, [&](Rank& rank) {
        Parameters parameters(rank, 3, false, {depth, true});
        rank.guard([&] {
          for (int version = 1; version <= 3; ++version) {
            parameters.update(version);
            parameters.use_slots_for_something_else();
            parameters.step();
          }
        });
        EXPECT_EQ(parameters.num_wrong(), 0) << late << " late, depth " << depth;
      });
    }
  }
}

struct Reduced {
  int stage = 0, world_size = 1, num_micro_steps = 1;
  GradSync grad_sync = GradSync::kEveryMicroStep;
  bool tied = false;
};
std::string name_of(const Reduced& r) {
  return fmt::format("stage {} world {} micro-steps {} {}{}", r.stage, r.world_size,
                     r.num_micro_steps, r.grad_sync == GradSync::kBoundary ? "boundary" : "every",
                     r.tied ? " tied" : "");
}

// Small integers, so that every sum is exact, whatever its order.
float contribution(int step, int micro_step, int rank, std::uint32_t parameter, std::int64_t i) {
  return static_cast<float>((step * 5 + micro_step * 7 + rank * 3 + parameter + i * 11) % 13) -
         4.0f;
}

class Gradients {
 public:
  Gradients(Rank& rank, const Reduced& how)
      : rank_(rank),
        how_(how),
        units_(test::make_units(test::small_units(kLateBlocks, how.tied),
                                placement_of(how.stage, how.grad_sync), rank)),
        gradients_(rank, units_, how.num_micro_steps) {}

  void step(int step) {
    for (int micro_step = 0; micro_step < how_.num_micro_steps; ++micro_step) {
      gradients_.begin_micro_step(micro_step);
      const int head = how_.tied ? 0 : kLateBlocks + 1;
      write(head, step, micro_step);
      if (!how_.tied) gradients_.close(head);
      for (int unit = kLateBlocks; unit >= 0; --unit) {
        if (unit != head) write(unit, step, micro_step);
        gradients_.close(unit);
      }
    }
    gradients_.finish();
    rank_.compute().run("check", [this, step] { check(step); });
  }
  int num_wrong() const { return num_wrong_; }

 private:
  void write(int unit, int step, int micro_step) {
    const std::vector<Tensor> views = gradients_.open(unit);
    rank_.compute().run("backward", [=, this] {
      for (std::size_t p = 0; p < views.size(); ++p) {
        const std::uint32_t index = units_[unit].spec().parameters[p].index;
        for (std::int64_t i = 0; i < views[p].numel; ++i) {
          views[p].as<float>()[i] = contribution(step, micro_step, rank_.rank, index, i);
        }
      }
    });
  }

  void check(int step) {
    for (const UnitState& unit : units_) {
      for (const int slice_index : unit.updated_slices()) {
        for (const Piece& piece : unit.layout().pieces(slice_index)) {
          const float* actual =
              unit.gradient(slice_index).part(piece.position, piece.count).as<float>();
          const std::uint32_t index = unit.spec().parameters[piece.parameter].index;
          for (std::int64_t i = 0; i < piece.count; ++i) {
            num_wrong_ += actual[i] != sum_of(step, index, piece.first_element + i);
          }
        }
      }
    }
  }
  float sum_of(int step, std::uint32_t parameter, std::int64_t element) const {
    float sum = 0.0f;
    for (int micro_step = 0; micro_step < how_.num_micro_steps; ++micro_step) {
      for (int r = 0; r < how_.world_size; ++r) {
        sum += contribution(step, micro_step, r, parameter, element);
      }
    }
    return sum;
  }

  Rank& rank_;
  const Reduced& how_;
  std::vector<UnitState> units_;
  GradientReduction gradients_;
  int num_wrong_ = 0;
};

TEST(LateStreams, EveryGradientIsReducedWhenItIsWholeAndBeforeItIsOverwritten) {
  for (const char* late : kStreams) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const GradSync grad_sync : {GradSync::kEveryMicroStep, GradSync::kBoundary}) {
        for (int world = 1; world <= 3; ++world) {
          for (int micro_steps = 1; micro_steps <= 3; ++micro_steps) {
            const Reduced how{stage, world, micro_steps, grad_sync, world == 2};
            on_ranks(world, late, [&](Rank& rank) {
              Gradients gradients(rank, how);
              rank.guard([&] {
                for (int step = 0; step < 3; ++step) gradients.step(step);
              });
              EXPECT_EQ(gradients.num_wrong(), 0) << late << " late, " << name_of(how);
            });
          }
        }
      }
    }
  }
}

// The test's own streams: a stream that doesn't wait runs first, one that waits runs after it.
TEST(LateStreams, ShowAMissingWaitAndObeyOneThatIsThere) {
  for (const bool waits : {false, true}) {
    on_ranks(1, "compute", [&](Rank& rank) {
      std::vector<std::string> order;
      const auto done = rank.make_event();
      rank.guard([&] {
        rank.compute().run("first", [&] { order.emplace_back("compute"); });
        rank.compute().record(*done);
        if (waits) rank.gather().wait(*done);
        rank.gather().run("second", [&] { order.emplace_back("gather"); });
      });
      EXPECT_EQ(order, waits ? (std::vector<std::string>{"compute", "gather"})
                             : (std::vector<std::string>{"gather", "compute"}));
    });
  }
}

}  // namespace
}  // namespace sherd::sharding
