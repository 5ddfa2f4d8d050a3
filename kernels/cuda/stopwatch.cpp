#include <algorithm>
#include <vector>

#include "core/cuda_device.h"
#include "core/cuda_error.h"
#include "kernels/cuda/forms.h"

namespace sherd::kernels::cuda {
namespace {

class TimedEvent {
 public:
  TimedEvent() { check_cuda(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~TimedEvent() { cudaEventDestroy(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  void record(cudaStream_t stream) {
    check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  double seconds_until(const TimedEvent& end) const {
    float milliseconds = 0.0f;
    check_cuda(cudaEventElapsedTime(&milliseconds, event_, end.event_), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

double seconds_on_device(Stream& stream, int repeats, const std::function<void()>& before,
                         const std::function<void()>& work) {
  CHECK(repeats >= 1, "{} repeats", repeats);
  CudaStream& cuda = cuda_stream(stream);
  std::vector<TimedEvent> begin(static_cast<std::size_t>(repeats)), end(begin.size());
  for (std::size_t i = 0; i < begin.size(); ++i) {
    before();
    begin[i].record(cuda.handle());
    work();
    end[i].record(cuda.handle());
  }
  stream.synchronize();
  std::vector<double> seconds;
  for (std::size_t i = 0; i < begin.size(); ++i) seconds.push_back(begin[i].seconds_until(end[i]));
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<std::size_t>(repeats) / 2];
}

}  // namespace sherd::kernels::cuda
