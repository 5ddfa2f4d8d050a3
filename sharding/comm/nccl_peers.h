/// What the members of a group over NCCL say to one another where they are in different processes: the group's id,
/// who has come and left, and, when a collective waits too long, where everybody stands.
///
/// Names  rank r's notices begin with the group and r. The process of the group's first member hears who comes
///        and leaves, and tells the others: a few notices for each member, however many there are.
/// Ends   no call waits longer than it says once the world is aborted (NcclProcesses::abort_reason).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sharding/comm/nccl.h"

namespace sherd::sharding {

class NcclPeers {
 public:
  /// `here`: those of the members' `ranks` that are threads of this process. `processes`: null where all are.
  NcclPeers(std::string group, std::vector<int> ranks, std::vector<int> here,
            NcclProcesses* processes);

  /// Whether there are members in other processes. Nothing below does anything where there are none.
  bool any() const { return !others_.empty(); }

  /// Of the process with the first member; and by whom the others are told.
  void send_id(const std::string& id) const;
  std::optional<std::string> await_id(std::chrono::milliseconds within) const;

  void say_come() const;
  /// Those that haven't, as the process of the first member knows. Others wait a moment for what that one says by
  /// aborting the world, and know no others.
  std::vector<int> not_come() const;

  /// Where a rank is with regard to a call of the group's.
  struct Standing {
    int rank = 0;
    bool has_come = false;
    std::string call{};  ///< in words; empty: it is through with it
  };
  /// Asks for call `number` in the name of `asker`, who is here. Whoever says nothing within some moments hasn't
  /// come. `meanwhile` is called now and then: whoever asks can be asked.
  std::vector<Standing> ask(int asker, std::int64_t number,
                            const std::function<void()>& meanwhile) const;
  /// Answers whoever has asked, with what `standing_of` says of each member that is here, by its place among them.
  void answer(const std::function<Standing(std::size_t place, std::int64_t number)>& standing_of);

  /// Returns when all members have left, or the world was aborted.
  void leave() const;

 private:
  bool has_first() const { return here_.front() == ranks_.front(); }
  std::string name_of(int rank, const std::string& notice) const;
  std::vector<int> silent(const std::string& notice) const;

  const std::string group_;
  const std::vector<int> ranks_, here_;
  std::vector<int> others_;  // of ranks_
  NcclProcesses* const processes_;
  std::map<int, std::string> answered_;  // each rank's last question
};

}  // namespace sherd::sharding
