/// A CUDA event that is destroyed with its owner. For files that are compiled with CUDA only.
#pragma once

#include <utility>

#include "core/cuda_error.h"

namespace sherd {

/// It belongs to the calling thread's current device; streams of that device record it.
class OwnedCudaEvent {
 public:
  /// `flags` as cudaEventCreateWithFlags takes them; cudaEventDefault measures time.
  explicit OwnedCudaEvent(unsigned flags) {
    check_cuda(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreateWithFlags");
  }
  OwnedCudaEvent(OwnedCudaEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  OwnedCudaEvent& operator=(OwnedCudaEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~OwnedCudaEvent() {
    if (event_) cudaEventDestroy(event_);
  }

  cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream) const {
    check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  /// Whether the device has passed the point where it was recorded; true if it never was.
  bool passed() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    check_cuda(status, "cudaEventQuery");
    return true;
  }
  double milliseconds_until(const OwnedCudaEvent& end) const {
    float milliseconds = 0.0f;
    check_cuda(cudaEventElapsedTime(&milliseconds, event_, end.event_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace sherd
