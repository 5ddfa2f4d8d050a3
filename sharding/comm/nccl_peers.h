/// Messages between members of an NCCL group in different processes: the group's id, who has come
/// and left, and, when a collective waits too long, where each member is.
///
/// Names  rank r's notices begin with the group and r. The process of the group's first member
///        learns who comes and leaves, and tells the others: a few notices per member, however many
///        there are.
/// Ends   once the world is aborted (NcclProcesses::abort_reason), no call waits longer than it
///        states.
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
  /// `here`: the members among `ranks` that are threads of this process. `processes`: null if all
  /// are.
  NcclPeers(std::string group, std::vector<int> ranks, std::vector<int> here,
            NcclProcesses* processes);

  /// Whether there are members in other processes. If not, the functions below do nothing.
  bool any() const { return !others_.empty(); }

  /// The process with the first member sends the id; the others await it.
  void send_id(const std::string& id) const;
  std::optional<std::string> await_id(std::chrono::milliseconds within) const;

  void say_come() const;
  /// The members that haven't come, as the process of the first member knows. Other processes wait
  /// a moment, since that process may abort the world with its reason, and return none.
  std::vector<int> not_come() const;

  /// Where a rank is relative to a call of the group.
  struct Standing {
    int rank = 0;
    bool has_come = false;
    std::string call{};  ///< as text; empty: it has finished it
  };
  /// Asks for call `number` on behalf of `asker`, a member in this process. A rank that doesn't
  /// answer within moments hasn't come. `meanwhile` is called at intervals, because the asking
  /// process can be asked too.
  std::vector<Standing> ask(int asker, std::int64_t number,
                            const std::function<void()>& meanwhile) const;
  /// Answers all questions with what `standing_of` returns for each member in this process, by its
  /// index.
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
