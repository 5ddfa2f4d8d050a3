#include "engine/hooks/delivered.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sherd::engine {
namespace {

using nlohmann::json;
constexpr std::int64_t kMostBytes = std::int64_t{16} << 20;

}  // namespace

Delivered::Delivered(checkpoint::Disk& disk, std::string output_dir,
                     const checkpoint::OutputLock* lock)
    : disk_(disk), output_dir_(std::move(output_dir)), lock_(lock) {}

void Delivered::load() {
  const std::lock_guard guard(mutex_);
  try {
    const std::string path = output_dir_ + "/" + kDeliveredName;
    if (!checkpoint::exists(disk_, path)) return;
    const json file = json::parse(checkpoint::read_file(disk_, path, kMostBytes));
    for (const json& entry : file.at("delivered")) {
      entries_.insert({entry.at("step").get<std::int64_t>(), entry.at("save_uuid")});
    }
  } catch (const DataError&) {
  } catch (const json::exception&) {
  }
}

bool Delivered::has(const std::string& save_uuid) const {
  const std::lock_guard guard(mutex_);
  return std::ranges::any_of(entries_,
                             [&](const Entry& entry) { return entry.save_uuid == save_uuid; });
}

void Delivered::add(std::int64_t step, const std::string& save_uuid) {
  const auto kept = checkpoint::committed_steps(disk_, output_dir_ + "/checkpoints");
  const std::lock_guard guard(mutex_);
  std::erase_if(entries_, [&](const Entry& entry) {
    return std::ranges::find(kept, entry.step) == kept.end();
  });
  entries_.insert({step, save_uuid});
  json file = {{"delivered", json::array()}};
  for (const Entry& entry : entries_) {
    file["delivered"].push_back({{"step", entry.step}, {"save_uuid", entry.save_uuid}});
  }
  if (lock_) lock_->check();
  checkpoint::replace_file(disk_, output_dir_ + "/" + kDeliveredName, file.dump() + "\n");
}

std::vector<std::int64_t> Delivered::missing() const {
  const std::string folder = output_dir_ + "/checkpoints";
  std::vector<std::int64_t> steps;
  for (const std::int64_t step : checkpoint::committed_steps(disk_, folder)) {
    try {
      const checkpoint::Checkpoint found(disk_,
                                         folder + "/" + checkpoint::step_directory_name(step));
      if (!has(found.manifest().save_uuid)) steps.push_back(step);
    } catch (const DataError&) {
    }
  }
  std::ranges::reverse(steps);
  return steps;
}

}  // namespace sherd::engine
