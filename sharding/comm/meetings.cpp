#include "sharding/comm/meetings.h"

namespace sherd::sharding {

std::shared_ptr<MeetingPlace> Meetings::place_of(const Group& group) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<MeetingPlace>& place = places_[group.name];
  if (!place) {
    place = std::make_shared<MeetingPlace>(group.ranks, timeout_);
    if (!abort_reason_.empty()) place->abort(abort_reason_);
  }
  SHERD_CHECK(place->ranks() == group.ranks, "group {} with other ranks than before", group.name);
  return place;
}

void Meetings::abort(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (abort_reason_.empty()) abort_reason_ = reason.empty() ? "a rank stopped" : reason;
  for (const auto& [name, place] : places_) place->abort(abort_reason_);
}

}  // namespace sherd::sharding
