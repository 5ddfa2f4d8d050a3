#include "engine/data/prefetcher.h"

#include <utility>

#include "core/error.h"
#include "core/thread.h"

namespace sherd::data {

BatchPrefetcher::BatchPrefetcher(FillBatch fill, std::int64_t first_step,
                                 std::int64_t num_micro_steps, std::array<Batch, 2> buffers)
    : fill_(std::move(fill)),
      first_step_(first_step),
      num_micro_steps_(num_micro_steps),
      buffers_(buffers) {
  SHERD_CHECK(num_micro_steps > 0, "{} micro-steps", num_micro_steps);
  thread_ = start_thread("that prepares batches", [this] { work(); });
}

BatchPrefetcher::~BatchPrefetcher() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Batch BatchPrefetcher::next() {
  std::unique_lock lock(mutex_);
  num_released_ = num_given_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return num_filled_ > num_given_ || error_; });
  if (num_filled_ == num_given_) std::rethrow_exception(error_);
  return buffers_[static_cast<std::size_t>(num_given_++ % 2)];
}

bool BatchPrefetcher::has_next() {
  std::lock_guard lock(mutex_);
  return num_filled_ > num_given_;
}

void BatchPrefetcher::work() {
  for (std::int64_t batch = 0;; ++batch) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || batch - num_released_ < 2; });
      if (stop_) return;
    }
    std::exception_ptr error;
    try {
      fill_(first_step_ + batch / num_micro_steps_, batch % num_micro_steps_,
            buffers_[static_cast<std::size_t>(batch % 2)]);
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard lock(mutex_);
    if (error) {
      error_ = error;
    } else {
      ++num_filled_;
    }
    changed_.notify_all();
    if (error) return;
  }
}

}  // namespace sherd::data
