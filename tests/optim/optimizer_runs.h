/// Optimizers on ranks with synthetic gradients, for tests that compare them with whole tensors.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "tests/sharding/sharding_support.h"

namespace sherd::optim {

/// Units whose sizes divide nothing. A slice begins at a multiple of 64, and tensors of 351, 407
/// and 494 elements lie on two, three and four ranks. Blocks have stacked matrices, wide, tall and
/// square.
inline std::vector<UnitSpec> straddling_units() {
  std::uint32_t index = 0;
  const auto parameter = [&](std::string name, std::vector<std::int64_t> shape,
                             std::vector<std::int64_t> rows = {}) {
    return ParameterSpec{std::move(name), std::move(shape), {}, index++, std::move(rows)};
  };
  std::vector<UnitSpec> units;
  units.push_back({"embedding",
                   UnitClass::kEdge,
                   {parameter("embedding.token", {37, 11}), parameter("embedding.norm", {11})}});
  for (const std::string block : {"block.0", "block.1"}) {
    units.push_back(
        {block,
         UnitClass::kBlock,
         {parameter(block + ".norm", {13}), parameter(block + ".qkv", {27, 13}, {13, 7, 7}),
          parameter(block + ".qkv_bias", {27}), parameter(block + ".up", {38, 13}, {19, 19}),
          parameter(block + ".down", {13, 19})}});
  }
  return units;
}

/// On how many slices each parameter of a unit lies.
inline std::vector<int> slices_of_parameters(const sharding::FlatLayout& layout,
                                             std::size_t num_parameters) {
  std::vector<int> counts(num_parameters, 0);
  for (int slice_index = 0; slice_index < layout.num_slices(); ++slice_index) {
    for (const sharding::Piece& piece : layout.pieces(slice_index)) {
      ++counts[static_cast<std::size_t>(piece.parameter)];
    }
  }
  return counts;
}

inline float initial_value(std::uint32_t parameter, std::int64_t element) {
  return test::number(parameter, static_cast<std::uint64_t>(element), 1000);
}
/// Signs change from step to step, but every element has a direction that it prefers.
inline float gradient_value(int step, std::uint32_t parameter, std::int64_t element) {
  const auto i = static_cast<std::uint64_t>(element);
  return 0.3f * test::number(parameter, i, 2000) +
         0.5f * test::number(parameter, i, static_cast<std::uint64_t>(step));
}

/// Writes f(parameter index, element) into the gradients of every slice that this rank updates.
template <class Value>
void fill_gradients(const sharding::UnitState& unit, Value&& value) {
  for (const int slice_index : unit.updated_slices()) {
    float* slice = unit.gradient(slice_index).as<float>();
    for (const sharding::Piece& piece : unit.layout().pieces(slice_index)) {
      const std::uint32_t parameter = unit.spec().parameters[piece.parameter].index;
      for (std::int64_t i = 0; i < piece.count; ++i) {
        slice[piece.position + i] = value(parameter, piece.first_element + i);
      }
    }
  }
}

/// A rate that changes, a clip factor, and the step that Adam counts.
inline UpdateStep update_step(float lr, int step) {
  return {lr * (1.0f - 0.01f * static_cast<float>(step)), step, 0.75f};
}

/// One step of every unit.
inline void take_step(Stream& stream, Optimizer& optimizer,
                      const std::vector<sharding::UnitState>& units, const UpdateStep& step) {
  optimizer.prepare(stream, step);
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    optimizer.update(stream, static_cast<int>(unit), step);
  }
  stream.synchronize();
}

/// Every stage and world that a sharded optimizer is compared on.
inline std::vector<sherd::testing::RunShape> stages_and_worlds() {
  std::vector<sherd::testing::RunShape> shapes;
  for (int stage = 0; stage <= 3; ++stage) {
    for (int world = 1; world <= 4; ++world) {
      shapes.push_back(
          {.world_size = world, .stage = stage, .threads_per_rank = 1 + (stage + world) % 2});
    }
  }
  return shapes;
}

}  // namespace sherd::optim
