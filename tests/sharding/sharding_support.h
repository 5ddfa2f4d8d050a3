/// What sharding tests share: small units whose sizes divide nothing, and numbers to put in them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sharding/comm/threads.h"
#include "sharding/mesh/process_groups.h"
#include "sharding/zero/unit.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::test {

/// Embedding, blocks, and (untied) a head. Edges have different layouts and share slots, and so do
/// the last block and the others.
inline std::vector<UnitSpec> small_units(int num_blocks, bool tied) {
  std::uint32_t index = 0;
  const auto parameter = [&](std::string name, std::vector<std::int64_t> shape) {
    return ParameterSpec{std::move(name), std::move(shape), {}, index++};
  };
  std::vector<UnitSpec> units;
  units.push_back(
      {"embedding",
       UnitClass::kEdge,
       {parameter("embedding.token", {13, 7}), parameter("embedding.position", {5, 7})}});
  for (int i = 0; i < num_blocks; ++i) {
    const std::string name = "block." + std::to_string(i);
    const std::int64_t width = i + 1 == num_blocks ? 12 : 11;
    units.push_back({name,
                     UnitClass::kBlock,
                     {parameter(name + ".norm", {width}), parameter(name + ".weight", {width, 13}),
                      parameter(name + ".bias", {13})}});
  }
  if (!tied) {
    units.push_back({"head",
                     UnitClass::kEdge,
                     {parameter("head.norm", {7}), parameter("head.weight", {29, 7})}});
  }
  return units;
}

inline std::vector<sharding::UnitState> make_units(const std::vector<UnitSpec>& specs,
                                                   const sharding::Placement& placement,
                                                   const sharding::Rank& rank,
                                                   const sharding::Precision& precision = {}) {
  std::vector<sharding::UnitState> units;
  for (const UnitSpec& spec : specs) {
    units.emplace_back(sharding::UnitPlan(spec, placement, precision, rank.mesh), rank);
  }
  return units;
}

/// In (-1, 1), an odd multiple of 2^-23: a function of its arguments, never zero, with sums that
/// round, so that the order of three shows.
inline float number(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d = 0) {
  std::uint64_t bits = a;
  for (const std::uint64_t word : {b, c, d}) {
    bits = (bits ^ (bits >> 31)) * 0xbf58476d1ce4e5b9ull + word + 0x9e3779b97f4a7c15ull;
  }
  bits = (bits ^ (bits >> 29)) * 0x94d049bb133111ebull;
  return (static_cast<float>(bits >> 41) + 0.5f) / 4194304.0f - 1.0f;
}

/// Writes f(parameter index, element) into every slice that this rank updates.
template <class Value>
void fill_slices(const sharding::UnitState& unit, Value&& value) {
  for (const int slice_index : unit.updated_slices()) {
    float* slice = unit.fp32_slice(slice_index).as<float>();
    for (const sharding::Piece& piece : unit.layout().pieces(slice_index)) {
      const std::uint32_t parameter = unit.spec().parameters[piece.parameter].index;
      for (std::int64_t i = 0; i < piece.count; ++i) {
        slice[piece.position + i] = value(parameter, piece.first_element + i);
      }
    }
  }
}

/// A rank without streams, whose peers never come: for what only holds memory.
inline sharding::Rank lone_rank(int rank, int world_size) {
  sharding::Rank member;
  member.rank = rank;
  member.mesh = sharding::Mesh::sharded(world_size);
  member.groups = std::make_unique<sharding::ProcessGroups>(member.mesh, rank,
                                                            sharding::make_thread_rendezvous());
  member.memory = std::make_unique<HeapAllocator>();
  return member;
}

/// The elements of the padded unit, by the rule in flat_layout.h, counted independently here.
inline std::int64_t padded_numel(const UnitSpec& unit, int world_size) {
  std::int64_t numel = 0;
  for (const ParameterSpec& parameter : unit.parameters)
    numel += (parameter.numel() + 63) / 64 * 64;
  const std::int64_t step = 64 * world_size;
  return (numel + step - 1) / step * step;
}

}  // namespace sherd::test
