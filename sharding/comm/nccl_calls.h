/// What those members of a group that are threads of this process have called through NCCL and their GPUs
/// haven't finished: whether all called the same, and who has waited for whom for how long.
///
/// NCCL itself compares nothing and waits for ever. Here a call is noted with an event before and after
/// its work. A call waits from the moment when its stream has come to it, so a long queue in front of a
/// collective is no waiting; or from its beginning on the host, as long as it hasn't returned there.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sharding/comm/meeting_place.h"

struct CUstream_st;

namespace sherd::sharding {

class NcclCalls {
 public:
  using Clock = std::chrono::steady_clock;

  /// `ranks` are the members' numbers in the world, for messages.
  NcclCalls(std::vector<int> ranks, std::chrono::milliseconds timeout);
  ~NcclCalls();

  /// Member `member` makes its next call, on `stream`. Returns what is wrong if another member's call
  /// of the same number is another one, else "".
  std::string begin(int member, const Contribution& call, CUstream_st* stream);
  /// The host is through with the call that `begin` began.
  void end(int member, CUstream_st* stream);

  /// A call that has waited longer than the timeout.
  struct Overdue {
    int member = 0;
    std::int64_t number = 0;  ///< of the member's calls
    Contribution call{};
    std::vector<int> missing{};  ///< ranks of this process that haven't come to it
  };
  std::optional<Overdue> overdue();
  /// The same as a sentence, if no rank is in another process.
  std::string text_of(const Overdue& overdue) const;

  /// Where a member stands: how many calls it has come to, and which is number `number`; "" where it hasn't come
  /// to that, or is through with it.
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
  std::vector<Member> members_;
};

}  // namespace sherd::sharding
