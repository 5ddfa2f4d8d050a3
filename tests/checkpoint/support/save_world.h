/// Several ranks' writers driven by one thread, as an engine would drive them.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/store/step_directory.h"
#include "checkpoint/writer.h"
#include "tests/checkpoint/support/known_state.h"

namespace sherd::test {

inline std::string small_index(const checkpoint::Manifest& manifest) {
  return "not the index, but as good as one here: " + manifest.save_uuid;
}

struct SaveOutcome {
  bool committed = false;
  std::optional<checkpoint::SaveFailure> failure;  ///< of the first rank that has one
  std::string warning;
  checkpoint::SaveTimes times;  ///< of rank 0

  std::string what() const { return failure ? failure->message : "no failure"; }
};

class SaveWorld {
 public:
  SaveWorld(std::string directory, int world, std::vector<sharding::StateTensor> tensors,
            checkpoint::Disk& disk = checkpoint::posix_disk(), std::int64_t ring_bytes = 0,
            int writes_in_flight = 1)
      : directory_(std::move(directory)), tensors_(std::move(tensors)) {
    for (int rank = 0; rank < world; ++rank) {
      states_.push_back(std::make_unique<KnownState>(tensors_, 0, rank, world));
      rings_.emplace_back(std::max(ring_bytes, checkpoint::kBlockBytes));
      writers_.push_back(std::make_unique<checkpoint::Writer>(checkpoint::WriterOptions{
          directory_, rank, world, rings_.back().tensor(), writes_in_flight,
          rank == 0 ? small_index : checkpoint::IndexBuilder(), &disk}));
    }
  }

  checkpoint::Writer& writer(int rank) { return *writers_[static_cast<std::size_t>(rank)]; }
  KnownState& known(int rank) { return *states_[static_cast<std::size_t>(rank)]; }
  /// So that their memory is there already.
  void touch_rings() {
    for (const AlignedBytes& ring : rings_) {
      std::memset(ring.data(), 1, static_cast<std::size_t>(ring.tensor().bytes()));
    }
  }
  int world() const { return static_cast<int>(writers_.size()); }
  const std::string& directory() const { return directory_; }

  /// One rank after the other, so that the order of calls is the same every time.
  SaveOutcome save(std::int64_t step) {
    const std::string uuid = checkpoint::make_save_uuid();
    for (int rank = 0; rank < world(); ++rank) {
      begin(rank, step, uuid);
      writer(rank).wait();
    }
    return conclude(step);
  }
  /// All ranks at once.
  SaveOutcome save_together(std::int64_t step) {
    const std::string uuid = checkpoint::make_save_uuid();
    for (int rank = 0; rank < world(); ++rank) begin(rank, step, uuid);
    return conclude(step);
  }

  std::string complaint_about_step(std::int64_t step) const {
    return complaint_about(directory_ + "/" + checkpoint::step_directory_name(step), step,
                           tensors_);
  }
  std::vector<std::string> names() const {
    return checkpoint::list_directory(checkpoint::posix_disk(), directory_);
  }

 private:
  void begin(int rank, std::int64_t step, const std::string& uuid) {
    known(rank).fill(step);
    writer(rank).begin(step, uuid, known(rank).state());
  }
  /// What an engine does once every rank has something to say.
  SaveOutcome conclude(std::int64_t step) {
    SaveOutcome outcome;
    bool prepared = true;
    for (int rank = 0; rank < world(); ++rank) {
      writer(rank).wait_copied();
      const checkpoint::SaveStatus status = writer(rank).wait();
      if (status.phase == checkpoint::SavePhase::kPrepared) continue;
      prepared = false;
      if (!outcome.failure) outcome.failure = status.failure;
    }
    if (prepared) {
      writer(0).commit(std::make_shared<nlohmann::json>(nlohmann::json{{"saved_at", step}}));
      const checkpoint::SaveStatus status = writer(0).wait();
      outcome.committed = status.phase == checkpoint::SavePhase::kCommitted;
      outcome.failure = status.failure;
      outcome.warning = status.warning;
      outcome.times = status.times;
    }
    for (int rank = 0; rank < world(); ++rank) {
      if (outcome.committed) {
        writer(rank).finish();
      } else {
        writer(rank).discard();
      }
      const checkpoint::SaveStatus status = writer(rank).wait();
      if (outcome.warning.empty()) outcome.warning = status.warning;
    }
    return outcome;
  }

  std::string directory_;
  std::vector<sharding::StateTensor> tensors_;
  std::vector<std::unique_ptr<KnownState>> states_;
  std::vector<AlignedBytes> rings_;
  std::vector<std::unique_ptr<checkpoint::Writer>> writers_;
};

}  // namespace sherd::test
