/// A checkpoint as the trainer makes it: a Writer per rank, and the real index.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/store/hdf5_index.h"
#include "checkpoint/writer.h"
#include "tests/checkpoint/support/known_state.h"

namespace sherd::test {

/// Saves what ranks hold into `directory`, which exists; returns the checkpoint's path.
inline std::string save_states(const std::string& directory, std::int64_t step, int world,
                               const std::function<const sharding::State&(int rank)>& state_of) {
  const std::string uuid = checkpoint::make_save_uuid();
  std::vector<std::unique_ptr<checkpoint::Writer>> writers;
  std::vector<AlignedBytes> rings;
  rings.reserve(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    rings.emplace_back(checkpoint::kBlockBytes);
    checkpoint::WriterOptions options;
    options.directory = directory;
    options.rank = rank;
    options.world = world;
    options.ring = rings.back().tensor();
    options.build_index = checkpoint::build_hdf5_index;
    writers.push_back(std::make_unique<checkpoint::Writer>(options));
    writers.back()->begin(step, uuid, state_of(rank));
    SHERD_CHECK(writers.back()->wait().phase == checkpoint::SavePhase::kPrepared, "a save failed");
    writers.back()->wait_copied();
  }
  writers[0]->commit(std::make_shared<nlohmann::json>(nlohmann::json{{"saved_at", step}}));
  const checkpoint::SaveStatus status = writers[0]->wait();
  SHERD_CHECK(status.phase == checkpoint::SavePhase::kCommitted, "a commit failed");
  for (const auto& writer : writers) writer->finish();
  return directory + "/" + checkpoint::step_directory_name(step);
}

/// Saves `known_bits` of a step.
inline std::string save_known_state(const std::string& directory, std::int64_t step,
                                    const std::vector<sharding::StateTensor>& tensors, int world) {
  std::unique_ptr<KnownState> known;
  return save_states(directory, step, world, [&](int rank) -> const sharding::State& {
    known = std::make_unique<KnownState>(tensors, step, rank, world);
    return known->state();
  });
}

}  // namespace sherd::test
