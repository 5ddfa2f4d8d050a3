#include "engine/main/serve/text_jobs.h"

#include <utility>

namespace sherd::main {
namespace {

constexpr std::chrono::milliseconds kPatience{100};

}  // namespace

void TextJob::add(std::string_view piece) {
  const std::lock_guard lock(mutex_);
  pieces_ += piece;
  changed_.notify_all();
}

void TextJob::finish(engine::GeneratedText text) {
  const std::lock_guard lock(mutex_);
  text_ = std::move(text);
  state_ = State::kFinished;
  changed_.notify_all();
}

void TextJob::fail() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kGoing) state_ = State::kFailed;
  changed_.notify_all();
}

TextJob::State TextJob::wait(std::string& pieces) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kPatience, [&] { return !pieces_.empty() || state_ != State::kGoing; });
  pieces = std::exchange(pieces_, {});
  return state_;
}

TextJobs::Added TextJobs::add(std::shared_ptr<TextJob> job) {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return Added::kClosed;
  std::erase_if(waiting_, [](const auto& waiting) { return waiting->is_cancelled(); });
  const std::int64_t room = most_waiting_ + (in_work_ ? 0 : 1);
  if (std::ssize(waiting_) >= room) return Added::kFull;
  waiting_.push_back(std::move(job));
  added_.notify_all();
  return Added::kYes;
}

std::shared_ptr<TextJob> TextJobs::take() {
  std::unique_lock lock(mutex_);
  in_work_ = nullptr;
  added_.wait_for(lock, kPatience, [&] { return !waiting_.empty(); });
  if (waiting_.empty()) return nullptr;
  in_work_ = std::move(waiting_.front());
  waiting_.pop_front();
  return in_work_;
}

void TextJobs::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  for (const auto& job : waiting_) job->fail();
  waiting_.clear();
  if (in_work_) in_work_->fail();
}

}  // namespace sherd::main
