/// The meeting places of a process, by group name: shared by the ranks that are threads of it
/// (sharding/comm/threads.h, sharding/comm/shared_device.h).
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "sharding/comm/meeting_place.h"
#include "sharding/comm/rendezvous.h"

namespace sherd::sharding {

class Meetings {
 public:
  explicit Meetings(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  /// The place of `group`, made by the first member that asks. A place made after an abort is
  /// already aborted.
  std::shared_ptr<MeetingPlace> place_of(const Group& group);
  void abort(const std::string& reason);

 private:
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<MeetingPlace>> places_;
  std::string abort_reason_;
};

}  // namespace sherd::sharding
