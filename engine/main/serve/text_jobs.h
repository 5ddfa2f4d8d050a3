/// Texts that clients wait for: connections add jobs, one thread with the model takes them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/inference/generation.h"

namespace sherd::main {

/// One text. Its connection and the model's thread share it.
class TextJob {
 public:
  TextJob(std::vector<std::int32_t> ids, engine::GenerationOptions generation)
      : prompt(std::move(ids)), options(std::move(generation)) {}

  const std::vector<std::int32_t> prompt;
  const engine::GenerationOptions options;

  /// The client is gone: the text isn't needed any more.
  void cancel() { is_cancelled_ = true; }
  bool is_cancelled() const { return is_cancelled_; }

  // By the model's thread.
  void add(std::string_view piece);
  void finish(engine::GeneratedText text);
  void fail();  ///< there will be no text: the server is ending

  enum class State { kGoing, kFinished, kFailed };
  /// Moves the text that came since the last call to `pieces`, after waiting until there is some,
  /// or the text has ended, or 100 ms are over.
  State wait(std::string& pieces);
  /// After kFinished.
  const engine::GeneratedText& text() const { return *text_; }

 private:
  std::atomic<bool> is_cancelled_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string pieces_;
  State state_ = State::kGoing;
  std::optional<engine::GeneratedText> text_;
};

class TextJobs {
 public:
  explicit TextJobs(std::int64_t most_waiting) : most_waiting_(most_waiting) {}

  enum class Added { kYes, kFull, kClosed };
  /// One job at a time is in work, and at most `most_waiting` wait.
  Added add(std::shared_ptr<TextJob> job);
  /// The next one, which then is in work until the next call; null after 100 ms without one.
  std::shared_ptr<TextJob> take();
  /// All jobs fail, and no more are added.
  void close();

 private:
  const std::int64_t most_waiting_;
  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<std::shared_ptr<TextJob>> waiting_;
  std::shared_ptr<TextJob> in_work_;
  bool is_closed_ = false;
};

}  // namespace sherd::main
