/// Delivers results in the order of their numbers, although ranks produce them in any order.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace sherd::engine {

template <class Result>
class InOrder {
 public:
  using Tell = std::function<void(std::size_t number, const Result& result)>;
  explicit InOrder(Tell tell) : tell_(std::move(tell)) {}

  /// Called by any rank, once for each number from 0 on. Delivers the result, and those that waited
  /// for it.
  void add(std::size_t number, Result result) {
    std::lock_guard lock(mutex_);
    waiting_.emplace(number, std::move(result));
    for (auto next = waiting_.find(num_told_); next != waiting_.end();
         next = waiting_.find(num_told_)) {
      if (tell_) tell_(num_told_, next->second);
      waiting_.erase(next);
      ++num_told_;
    }
  }

 private:
  Tell tell_;
  std::mutex mutex_;
  std::map<std::size_t, Result> waiting_;
  std::size_t num_told_ = 0;
};

}  // namespace sherd::engine
