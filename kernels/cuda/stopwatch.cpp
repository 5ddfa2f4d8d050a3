#include <algorithm>
#include <vector>

#include "core/cuda_device.h"
#include "core/cuda_event.h"
#include "kernels/cuda/forms.h"

namespace sherd::kernels::cuda {
double seconds_on_device(Stream& stream, int repeats, const std::function<void()>& before,
                         const std::function<void()>& work) {
  SHERD_CHECK(repeats >= 1, "{} repeats", repeats);
  CudaStream& cuda = cuda_stream(stream);
  std::vector<OwnedCudaEvent> begin, end;
  for (int i = 0; i < repeats; ++i) {
    before();
    begin.emplace_back(cudaEventDefault).record(cuda.handle());
    work();
    end.emplace_back(cudaEventDefault).record(cuda.handle());
  }
  stream.synchronize();
  std::vector<double> seconds;
  for (std::size_t i = 0; i < begin.size(); ++i) {
    seconds.push_back(1e-3 * begin[i].milliseconds_until(end[i]));
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<std::size_t>(repeats) / 2];
}

}  // namespace sherd::kernels::cuda
