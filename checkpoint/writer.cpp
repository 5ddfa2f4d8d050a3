#include "checkpoint/writer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "checkpoint/save.h"
#include "core/error.h"

namespace sherd::checkpoint {

Writer::Writer(WriterOptions options) : options_(std::move(options)) {
  SHERD_CHECK(options_.rank >= 0 && options_.rank < options_.world &&
              options_.writes_in_flight > 0);
  SHERD_CHECK(options_.ring.bytes() >= kBlockBytes, "a staging ring of {} bytes; a block has {}",
              options_.ring.bytes(), kBlockBytes);
  SHERD_CHECK(options_.rank != 0 || options_.build_index, "rank 0 builds the index");
}

Writer::~Writer() = default;

void Writer::begin(std::int64_t step, const std::string& save_uuid, const sharding::State& state) {
  SHERD_CHECK(!save_ || save_->status().phase == SavePhase::kIdle, "a save is on already");
  save_.reset();  // its thread is ending
  save_ = std::make_unique<Save>(options_, step, save_uuid, state);
}

bool Writer::wait_copied(std::optional<std::chrono::milliseconds> most) {
  return !save_ || save_->wait_copied(most);
}

SaveStatus Writer::status() const {
  return save_ ? save_->status() : SaveStatus{};
}

SaveStatus Writer::wait() {
  return save_ ? save_->wait() : SaveStatus{};
}

void Writer::commit(std::shared_ptr<const nlohmann::json> global) {
  SHERD_CHECK(save_, "commit without a save");
  save_->commit(std::move(global));
}

void Writer::finish() {
  SHERD_CHECK(save_, "finish without a save");
  save_->finish();
}

void Writer::discard() {
  if (save_) save_->discard();
}

std::int64_t staging_bytes(const std::vector<std::int64_t>& bytes_by_kind) {
  std::int64_t room = 0;
  // Of a kind's blocks only the last one isn't whole.
  for (const std::int64_t bytes : bytes_by_kind) room += StagingRing::room_of(bytes);
  return std::max(room, kBlockBytes);
}

std::string make_save_uuid() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

std::string_view name_of(SavePhase phase) {
  constexpr std::array<std::string_view, 7> kNames = {
      "idle", "writing", "prepared", "committing", "committed", "failed", "being discarded"};
  return kNames[static_cast<std::size_t>(phase)];
}

double SaveTimes::mib_per_second() const {
  const double seconds = std::chrono::duration<double>(written).count();
  return seconds > 0 ? static_cast<double>(bytes) / (1 << 20) / seconds : 0;
}

}  // namespace sherd::checkpoint
