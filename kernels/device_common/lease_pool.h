/// A pool of objects that are costly to create and usable by one thread at a time: libraries'
/// handles and plans. A thread leases one for as long as it needs it, and returns it with
/// everything stored in it; the next thread reuses it. So a process holds as many as were ever
/// needed at once, however many threads come and go.
///
/// A pool lives as long as the process (destroying handles at exit races with the driver's
/// shutdown), and must outlive its leases.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace sherd::kernels::device_common {

template <class T>
class LeasePool {
 public:
  /// Returns the object when destroyed.
  class Lease {
   public:
    Lease(LeasePool& pool, std::unique_ptr<T> item) : pool_(&pool), item_(std::move(item)) {}
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (item_) pool_->give_back(std::move(item_));
    }
    T& operator*() const { return *item_; }
    T* operator->() const { return item_.get(); }

   private:
    LeasePool* pool_;
    std::unique_ptr<T> item_;
  };

  /// The object that was returned last, or else a new one from `make`. Any thread may call it.
  template <class Make>
  Lease lease(Make&& make) {
    std::unique_lock lock(mutex_);
    if (free_.empty()) {
      lock.unlock();
      return Lease(*this, make());
    }
    std::unique_ptr<T> item = std::move(free_.back());
    free_.pop_back();
    return Lease(*this, std::move(item));
  }

 private:
  void give_back(std::unique_ptr<T> item) {
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(item));
  }
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
};

/// The calling thread's T for `device`: leased on first use, until the thread ends. There is one
/// pool for each T and device, which lives as long as the process.
template <class T, class Make>
T& leased_by_thread(int device, Make&& make) {
  static std::mutex mutex;
  static auto* pools = new std::map<int, LeasePool<T>>;
  thread_local std::map<int, typename LeasePool<T>::Lease> leases;
  auto found = leases.find(device);
  if (found == leases.end()) {
    std::unique_lock lock(mutex);
    LeasePool<T>& pool = (*pools)[device];
    lock.unlock();
    found = leases.emplace(device, pool.lease(make)).first;
  }
  return *found->second;
}

}  // namespace sherd::kernels::device_common
