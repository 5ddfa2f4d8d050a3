/// Compressed sums over replicas, with made-up gradients: what each step adds up to, and what each
/// replica keeps.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "optim/compressed_sum.h"
#include "tests/optim/optimizer_runs.h"

namespace sherd::optim {

/// The gradient of a replica, summed over its ranks.
using GradientOf =
    std::function<float(int replica, int step, std::uint32_t parameter, std::int64_t element)>;

/// Whole tensors by parameter. State of replica w is named "w.PARAMETER.KIND", that of all
/// "PARAMETER.KIND".
struct CompressedStep {
  std::map<std::uint32_t, std::vector<float>> sums;
  std::map<std::string, std::vector<float>> state;

  bool operator==(const CompressedStep&) const = default;
};

struct CompressedRun {
  Compression options{};
  std::vector<UnitSpec> units{};
  GradientOf gradient{};
  int replicas = 2, shards = 1, stage = 2, steps = 1;
  int kept_from = 0;  ///< earlier steps aren't returned
  std::int64_t steps_per_epoch = 1 << 20;
  std::function<bool(int step)> has_targets = [](int) { return true; };
  /// Called once on each rank before the first step.
  std::function<void(CompressedSum&)> prepare = [](CompressedSum&) {};
};

inline Tensor part_of(const sharding::UnitState& unit) {
  const Tensor& gradients = unit.gradients();
  return unit.placement().gradients_sharded() ? gradients : unit.part_of(gradients);
}

inline const ParameterSpec& parameter_of(const std::vector<UnitSpec>& units, std::uint32_t index) {
  for (const UnitSpec& unit : units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (parameter.index == index) return parameter;
    }
  }
  SHERD_CHECK(false, "no parameter {}", index);
  __builtin_unreachable();
}

inline void put(std::vector<float>& whole, std::int64_t first, const Tensor& data) {
  const auto end = static_cast<std::size_t>(first + data.numel);
  if (whole.size() < end) whole.resize(end);
  std::copy_n(data.as<float>(), data.numel, whole.begin() + first);
}

/// Bit by bit: a NaN equals itself.
inline bool same_bits(const std::vector<float>& one, const std::vector<float>& other) {
  return std::ranges::equal(one, other, {}, std::bit_cast<std::uint32_t, float>,
                            std::bit_cast<std::uint32_t, float>);
}

/// The steps, as all ranks together have them. Fails the test if replicas have other sums.
inline std::vector<CompressedStep> run(const CompressedRun& how) {
  std::vector<std::vector<CompressedStep>> of_replicas(
      static_cast<std::size_t>(how.replicas),
      std::vector<CompressedStep>(static_cast<std::size_t>(how.steps - how.kept_from)));
  std::mutex mutex;
  sherd::testing::run_ranks(
      {.world_size = how.replicas * how.shards,
       .axes = {{"replicate", how.replicas}, {"shard", how.shards}},
       .stage = how.stage,
       .delay_seed = how.steps > 100 ? 0u : 3u},
      [&](sharding::Rank& rank) {
        const auto units = test::make_units(how.units, sharding::placement_of(how.stage), rank);
        const auto sum = CompressedSum::make(how.options, rank, units, 1);
        how.prepare(*sum);
        const int replica = rank.mesh.coordinate(rank.rank, sharding::kReplicateAxis);
        rank.guard([&] {
          rank.memory->enter(kBackward);
          for (int step = 0; step < how.steps; ++step) {
            sum->begin_step(step, step / how.steps_per_epoch, how.has_targets(step));
            for (std::size_t i = 0; i < units.size(); ++i) {
              const Tensor part = part_of(units[i]);
              std::fill_n(part.as<float>(), part.numel, 0.0f);
              for (const sharding::Piece& piece : units[i].layout().pieces(units[i].own_slice())) {
                const std::uint32_t index = units[i].spec().parameters[piece.parameter].index;
                for (std::int64_t k = 0; k < piece.count; ++k) {
                  part.as<float>()[piece.position + k] =
                      how.gradient(replica, step, index, piece.first_element + k);
                }
              }
              sum->add(rank.reduce(), static_cast<int>(i), part);
            }
            rank.reduce().synchronize();
            if (step < how.kept_from) continue;
            const std::lock_guard lock(mutex);
            auto& kept = of_replicas[static_cast<std::size_t>(replica)]
                                    [static_cast<std::size_t>(step - how.kept_from)];
            for (const sharding::UnitState& unit : units) {
              for (const sharding::Piece& piece : unit.layout().pieces(unit.own_slice())) {
                put(kept.sums[unit.spec().parameters[piece.parameter].index], piece.first_element,
                    part_of(unit).part(piece.position, piece.count));
              }
            }
            for (const MomentPiece& piece : sum->own_pieces()) {
              put(kept.state[fmt::format("{}.{}.{}", replica, piece.parameter, piece.kind)],
                  piece.first_element, piece.data);
            }
            for (const MomentPiece& piece : sum->shared_pieces()) {
              put(kept.state[fmt::format("{}.{}", piece.parameter, piece.kind)],
                  piece.first_element, piece.data);
            }
          }
        });
      });
  std::vector<CompressedStep> steps = of_replicas[0];
  for (int replica = 1; replica < how.replicas; ++replica) {
    for (std::size_t step = 0; step < steps.size(); ++step) {
      const CompressedStep& other = of_replicas[static_cast<std::size_t>(replica)][step];
      for (const auto& [parameter, values] : other.sums) {
        EXPECT_TRUE(same_bits(values, steps[step].sums.at(parameter)))
            << parameter << " of replica " << replica << ", step " << step;
      }
      for (const auto& [name, values] : other.state) {
        const auto [at, is_new] = steps[step].state.emplace(name, values);
        EXPECT_TRUE(is_new || same_bits(at->second, values)) << name << " of replica " << replica;
      }
    }
  }
  return steps;
}

/// Fails the test if stages or numbers of shards change a bit of what `first` gives.
inline void expect_equal_at_every_stage(const CompressedRun& first) {
  const auto expected = run(first);
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int shards : {1, 2, 3}) {
      CompressedRun other = first;
      other.stage = stage;
      other.shards = shards;
      EXPECT_TRUE(run(other) == expected) << "stage " << stage << " on " << shards << " shards";
    }
  }
}

/// The norm over all parameters of what replica `replica` keeps of this kind.
inline double norm_of(const CompressedStep& step, int replica, const std::string& kind) {
  double sum = 0.0;
  for (const auto& [name, values] : step.state) {
    if (!name.starts_with(fmt::format("{}.", replica)) || !name.ends_with("." + kind)) continue;
    for (const float value : values) sum += static_cast<double>(value) * value;
  }
  return std::sqrt(sum);
}

}  // namespace sherd::optim
