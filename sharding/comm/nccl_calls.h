/// NCCL calls of a group's members in this process that their GPUs haven't finished. Shows whether
/// all members made the same call, and who has waited for whom and for how long.
///
/// NCCL itself compares nothing and waits forever. Here a call is recorded with an event before and
/// after its work. A call waits from the time its stream reaches it, so a long queue before a
/// collective doesn't count as waiting. While its host call hasn't returned, it waits from the
/// start of that call.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/awake_time.h"
#include "sharding/comm/meeting_place.h"

struct CUstream_st;

namespace sherd::sharding {

class NcclCalls {
 public:
  using Clock = std::chrono::steady_clock;

  /// `ranks` are the members' world ranks, for messages.
  NcclCalls(std::vector<int> ranks, std::chrono::milliseconds timeout);
  ~NcclCalls();

  /// Member `member` makes its next call, on `stream`. Returns what is wrong if another member's
  /// call of the same number differs, otherwise "".
  std::string begin(int member, const Contribution& call, CUstream_st* stream);
  /// The host call that `begin` recorded has returned.
  void end(int member, CUstream_st* stream);

  /// A call that has waited longer than the timeout.
  struct Overdue {
    int member = 0;
    std::int64_t number = 0;  ///< counts the member's calls
    Contribution call{};
    std::vector<int> missing{};  ///< ranks of this process that haven't come to it
  };
  std::optional<Overdue> overdue();
  /// The same as a sentence, if all ranks are in this process.
  std::string text_of(const Overdue& overdue) const;

  /// Where a member is: how many calls it has reached, and call `number` as text; "" if it hasn't
  /// reached that call, or has finished it.
  struct Standing {
    std::int64_t num_reached = 0;
    std::string call{};
  };
  Standing standing(int member, std::int64_t number);

 private:
  struct Call;
  struct Member;

  const Call* call_of(int member, std::int64_t number) const;
  std::string disagreement(std::int64_t number) const;
  std::vector<int> missing_in(std::int64_t number) const;
  static bool has_come_to(const Call& call);
  void forget_finished();

  const std::vector<int> ranks_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  AwakeTime awake_;  ///< of `overdue`
  std::vector<Member> members_;
};

}  // namespace sherd::sharding
