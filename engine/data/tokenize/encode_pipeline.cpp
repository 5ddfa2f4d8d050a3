#include "engine/data/tokenize/encode_pipeline.h"

#include <algorithm>
#include <utility>

#include "core/thread.h"

namespace sherd::data {

EncodePipeline::EncodePipeline(Read read, const std::function<Encode()>& make_encode,
                               int num_workers)
    : max_slots_(static_cast<std::size_t>(2 * num_workers + 2)) {
  std::vector<Encode> encoders;
  for (int i = 0; i < num_workers; ++i) encoders.push_back(make_encode());
  try {
    threads_.push_back(
        start_thread("that reads text", [this, read = std::move(read)] { read_all(read); }));
    for (Encode& encode : encoders) {
      threads_.push_back(
          start_thread("that encodes text", [this, encode = std::move(encode)] { work(encode); }));
    }
  } catch (...) {  // no thread could be had
    stop();
    throw;
  }
}

EncodePipeline::~EncodePipeline() {
  stop();
}

void EncodePipeline::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void EncodePipeline::read_all(const Read& read) {
  for (bool more = true; more;) {
    auto slot = std::make_shared<Slot>();
    try {
      slot->batch = std::make_unique<EncodedBatch>();
      slot->batch->raw = read();
      more = !slot->batch->raw.empty();
    } catch (...) {
      slot->error = std::current_exception();
      slot->taken = slot->ready = true;
      more = false;
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stop_ || slots_.size() < max_slots_; });
    if (stop_) return;
    if (more || slot->error) slots_.push_back(std::move(slot));
    read_all_ = !more;
    lock.unlock();
    changed_.notify_all();
  }
}

void EncodePipeline::work(const Encode& encode) {
  std::unique_lock lock(mutex_);
  while (true) {
    auto waiting = slots_.end();
    changed_.wait(lock, [&] {
      waiting =
          std::find_if(slots_.begin(), slots_.end(), [](const auto& slot) { return !slot->taken; });
      return stop_ || waiting != slots_.end() || read_all_;
    });
    if (stop_ || waiting == slots_.end()) return;
    const std::shared_ptr<Slot> slot = *waiting;
    slot->taken = true;
    lock.unlock();
    try {
      encode(*slot->batch);
    } catch (...) {
      slot->error = std::current_exception();
    }
    lock.lock();
    slot->ready = true;
    changed_.notify_all();
  }
}

std::unique_ptr<EncodedBatch> EncodePipeline::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return slots_.empty() ? read_all_ : slots_.front()->ready; });
  if (slots_.empty()) return nullptr;
  const std::shared_ptr<Slot> slot = slots_.front();
  slots_.pop_front();
  lock.unlock();
  changed_.notify_all();
  if (slot->error) std::rethrow_exception(slot->error);
  return std::move(slot->batch);
}

}  // namespace sherd::data
