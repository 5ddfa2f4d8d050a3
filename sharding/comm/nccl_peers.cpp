#include "sharding/comm/nccl_peers.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "core/error.h"

namespace sherd::sharding {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kNow{0}, kToAnswer{2000}, kBetweenLooks{20};

const std::string kId = "the id", kHasCome = "has come", kHasLeft = "has left",
                  kAllHaveLeft = "all have left", kAsks = "asks where you stand";
// The first character of an answer.
constexpr char kNotThere = 'n', kThere = 't';

std::string answer_to(int asker, const std::string& number) {
  return fmt::format("to rank {}, of call {}", asker, number);
}

}  // namespace

NcclPeers::NcclPeers(std::string group, std::vector<int> ranks, std::vector<int> here,
                     NcclProcesses* processes)
    : group_(std::move(group)),
      ranks_(std::move(ranks)),
      here_(std::move(here)),
      processes_(processes) {
  std::ranges::set_difference(ranks_, here_, std::back_inserter(others_));
  SHERD_CHECK(!here_.empty() && (processes_ || others_.empty()), "{}: {} of {} members are here",
              group_, here_.size(), ranks_.size());
}

std::string NcclPeers::name_of(int rank, const std::string& notice) const {
  return fmt::format("{}: rank {}: {}", group_, rank, notice);
}

// The other members that haven't sent this notice.
std::vector<int> NcclPeers::silent(const std::string& notice) const {
  std::vector<int> silent;
  for (const int rank : others_) {
    if (!processes_->told(name_of(rank, notice), kNow)) silent.push_back(rank);
  }
  return silent;
}

void NcclPeers::send_id(const std::string& id) const {
  if (any()) processes_->tell(others_, name_of(ranks_[0], kId), id);
}

std::optional<std::string> NcclPeers::await_id(milliseconds within) const {
  return processes_->told(name_of(ranks_[0], kId), within);
}

void NcclPeers::say_come() const {
  if (!any() || has_first()) return;
  for (const int rank : here_) processes_->tell({ranks_[0]}, name_of(rank, kHasCome), "");
}

std::vector<int> NcclPeers::not_come() const {
  if (!any()) return {};
  if (has_first()) return silent(kHasCome);
  processes_->told(name_of(ranks_[0], "nothing"), kToAnswer);  // an abort ends it
  return {};
}

std::vector<NcclPeers::Standing> NcclPeers::ask(int asker, std::int64_t number,
                                                const std::function<void()>& meanwhile) const {
  using Clock = std::chrono::steady_clock;
  const std::string text = fmt::format("{}", number), answer = answer_to(asker, text);
  processes_->tell(others_, name_of(asker, kAsks), text);
  const auto deadline = Clock::now() + kToAnswer;
  while (!silent(answer).empty() && Clock::now() < deadline && processes_->abort_reason().empty()) {
    meanwhile();
    std::this_thread::sleep_for(kBetweenLooks);
  }
  std::vector<Standing> standings;
  for (const int rank : others_) {
    const auto said = processes_->told(name_of(rank, answer), kNow);
    const bool there = said && !said->empty() && said->front() == kThere;
    standings.push_back({rank, there, there ? said->substr(1) : ""});
  }
  return standings;
}

void NcclPeers::answer(
    const std::function<Standing(std::size_t place, std::int64_t number)>& standing_of) {
  for (const int asker : others_) {
    const auto asked = processes_->told(name_of(asker, kAsks), kNow);
    if (!asked || *asked == answered_[asker]) continue;
    answered_[asker] = *asked;
    for (std::size_t place = 0; place < here_.size(); ++place) {
      const Standing own = standing_of(place, std::atoll(asked->c_str()));
      processes_->tell({asker}, name_of(here_[place], answer_to(asker, *asked)),
                       (own.has_come ? kThere : kNotThere) + own.call);
    }
  }
}

void NcclPeers::leave() const {
  if (!any()) return;
  const auto aborted = [&] { return !processes_->abort_reason().empty(); };
  if (!has_first()) {
    for (const int rank : here_) processes_->tell({ranks_[0]}, name_of(rank, kHasLeft), "");
    while (!processes_->told(name_of(ranks_[0], kAllHaveLeft), kToAnswer) && !aborted()) {
    }
    return;
  }
  for (const int rank : others_) {
    while (!processes_->told(name_of(rank, kHasLeft), kToAnswer)) {
      if (aborted()) return;
    }
  }
  processes_->tell(others_, name_of(ranks_[0], kAllHaveLeft), "");
}

}  // namespace sherd::sharding
