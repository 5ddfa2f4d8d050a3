// The CUDA runtime's functions that Sherd's sources call.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/fake_cuda/scheduler.h"

namespace {

using fake_cuda::Operation;
using fake_cuda::Scheduler;

thread_local int current_device = 0;

Scheduler& scheduler() {
  return Scheduler::get();
}

using Lock = std::unique_lock<std::mutex>;

// A stream that exists, and isn't called from inside a host function.
cudaError_t check(cudaStream_t stream) {
  if (fake_cuda::in_host_function()) return cudaErrorNotPermitted;
  return scheduler().streams.contains(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}
cudaError_t check(cudaEvent_t event) {
  return scheduler().events.contains(event) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}
cudaError_t make_context() {
  if (fake_cuda::in_host_function()) return cudaErrorNotPermitted;
  scheduler().contexts.insert(current_device);
  return cudaSuccess;
}
std::size_t all_bytes(int device) {
  const auto& free = scheduler().machine.free_bytes;
  return static_cast<std::size_t>(device) < free.size() ? free[static_cast<std::size_t>(device)]
                                                        : std::size_t{64} << 30;
}
std::size_t taken_bytes(int device) {
  std::size_t bytes = 0;
  for (const auto& [data, piece] : scheduler().memory) {
    if (piece.device == device) bytes += piece.bytes;
  }
  return bytes;
}
// Aligned to pages, as memory of the real runtime is.
void* make_memory(std::size_t bytes, int device) {
  constexpr std::size_t kPage = 4096;
  void* data = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  scheduler().memory[data] = {bytes, device};
  scheduler().forget_past(data, bytes);
  return data;
}
void free_memory(void* data) {
  const auto found = scheduler().memory.find(data);
  scheduler().forget_past(data, found->second.bytes);
  scheduler().memory.erase(found);
  std::free(data);
}
// Device memory or page-locked: what a copy can use after the call has returned.
bool is_known(const void* data) {
  const auto next = scheduler().memory.upper_bound(data);
  if (next == scheduler().memory.begin()) return false;
  const auto& [begin, piece] = *std::prev(next);
  return static_cast<const char*>(data) < static_cast<const char*>(begin) + piece.bytes;
}

}  // namespace

namespace fake_cuda {

std::vector<std::pair<const void*, std::size_t>> memory() {
  Lock lock(scheduler().mutex);
  std::vector<std::pair<const void*, std::size_t>> pieces;
  for (const auto& [data, piece] : scheduler().memory) pieces.emplace_back(data, piece.bytes);
  return pieces;
}

void launch(cudaStream_t stream, Operation operation) {
  Lock lock(scheduler().mutex);
  if (check(stream) != cudaSuccess || stream->device != current_device) std::abort();
  const bool loads = scheduler().machine.loads_lazily && !stream->capture &&
                     scheduler().loaded.emplace(current_device, operation.name).second;
  if (loads) scheduler().finish_device(lock, current_device);
  scheduler().enqueue(lock, stream, std::move(operation));
}

}  // namespace fake_cuda

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
  *version = scheduler().machine.driver_version;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = scheduler().machine.num_devices;
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  Lock lock(scheduler().mutex);
  if (device < 0 || device >= scheduler().machine.num_devices) return cudaErrorInvalidDevice;
  current_device = device;
  return make_context();
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= scheduler().machine.num_devices) return cudaErrorInvalidDevice;
  *properties = {};
  std::strcpy(properties->name, "fake");
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->totalGlobalMem = std::size_t{80} << 30;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* bus, int bytes, int device) {
  std::snprintf(bus, static_cast<std::size_t>(bytes), "0000:%02x:00.0", device);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  Lock lock(scheduler().mutex);
  *total = std::size_t{80} << 30;
  *free = all_bytes(current_device) - taken_bytes(current_device);
  return make_context();
}
cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  Lock lock(scheduler().mutex);
  if (bytes > all_bytes(current_device) - taken_bytes(current_device)) {
    return cudaErrorMemoryAllocation;
  }
  *data = make_memory(bytes, current_device);
  return make_context();
}
cudaError_t cudaFree(void* data) {
  Lock lock(scheduler().mutex);
  if (!data) return cudaSuccess;
  // As CUDA does, wait for what the device has to do.
  scheduler().finish_device(lock, scheduler().memory[data].device);
  free_memory(data);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  Lock lock(scheduler().mutex);
  *data = make_memory(bytes, -1);
  return make_context();
}
cudaError_t cudaFreeHost(void* data) {
  Lock lock(scheduler().mutex);
  free_memory(data);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* data, int value, std::size_t bytes) {
  std::memset(data, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  Lock lock(scheduler().mutex);
  if (const cudaError_t error = check(stream); error != cudaSuccess) return error;
  scheduler().enqueue(
      lock, stream,
      {"copy", [=] { std::memcpy(to, from, bytes); }, {{from, bytes, false}, {to, bytes, true}}});
  // Host memory that isn't page-locked makes the caller wait.
  if (!is_known(from) || !is_known(to)) scheduler().finish(lock, stream);
  return cudaSuccess;
}

// As an H100's; the least is the greatest number.
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0, *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  Lock lock(scheduler().mutex);
  if (flags != cudaStreamNonBlocking || priority > 0 || priority < -5) return cudaErrorInvalidValue;
  auto made = std::make_unique<CUstream_st>();
  made->priority = priority;
  made->id = scheduler().next_stream++;
  made->device = current_device;
  *stream = made.get();
  scheduler().streams[*stream] = std::move(made);
  return make_context();
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Lock lock(scheduler().mutex);
  if (const cudaError_t error = check(stream); error != cudaSuccess) return error;
  scheduler().finish(lock, stream);  // the device's work continues; the handle is gone
  scheduler().streams.erase(stream);
  if (scheduler().streams.empty()) scheduler().forget_history();
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Lock lock(scheduler().mutex);
  if (stream == cudaStreamLegacy) return cudaSuccess;  // nothing is ever queued there
  if (const cudaError_t error = check(stream); error != cudaSuccess) return error;
  if (stream->capture) {
    stream->capture_broken = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  scheduler().finish(lock, stream);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  Lock lock(scheduler().mutex);
  auto made = std::make_unique<CUevent_st>();
  made->device = current_device;
  made->timed = (flags & cudaEventDisableTiming) == 0;
  *event = made.get();
  scheduler().events[*event] = std::move(made);
  return make_context();
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Lock lock(scheduler().mutex);
  if (const cudaError_t error = check(event); error != cudaSuccess) return error;
  scheduler().events.erase(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Lock lock(scheduler().mutex);
  if (const cudaError_t error = check(event); error != cudaSuccess) return error;
  if (const cudaError_t error = check(stream); error != cudaSuccess) return error;
  if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
  const auto point = event->point = std::make_shared<fake_cuda::Point>();
  scheduler().enqueue(lock, stream,
                      {"record",
                       [] {},
                       {},
                       [point, stream] {
                         point->passed = true;
                         point->known = stream->known;
                         point->milliseconds = scheduler().clock_ms;
                         return true;
                       }});
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Lock lock(scheduler().mutex);
  if (const cudaError_t error = check(event); error != cudaSuccess) return error;
  if (const cudaError_t error = check(stream); error != cudaSuccess) return error;
  const auto point = event->point;
  if (!point) return cudaSuccess;  // never recorded: nothing to wait for
  scheduler().enqueue(lock, stream,
                      {"wait",
                       [] {},
                       {},
                       [point, stream] {
                         if (point->passed) fake_cuda::join(stream->known, point->known);
                         return point->passed;
                       }});
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  Lock lock(scheduler().mutex);
  if (const cudaError_t error = check(event); error != cudaSuccess) return error;
  return !event->point || event->point->passed ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  Lock lock(scheduler().mutex);
  if (!begin->timed || !end->timed || !begin->point || !end->point) {
    return cudaErrorInvalidResourceHandle;
  }
  if (!begin->point->passed || !end->point->passed) return cudaErrorNotReady;
  *milliseconds = static_cast<float>(end->point->milliseconds - begin->point->milliseconds);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t work, void* data) {
  Lock lock(scheduler().mutex);
  if (const cudaError_t error = check(stream); error != cudaSuccess) return error;
  scheduler().enqueue(lock, stream, {"host function", [=] { work(data); }});
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  Lock lock(scheduler().mutex);
  if (const cudaError_t error = check(stream); error != cudaSuccess) return error;
  if (stream->capture) return cudaErrorIllegalState;
  stream->capture = std::make_shared<fake_cuda::Graph>();
  stream->capture_broken = false;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Lock lock(scheduler().mutex);
  *graph = nullptr;
  const auto captured = std::exchange(stream->capture, nullptr);
  if (!captured) return cudaErrorIllegalState;
  if (stream->capture_broken) return cudaErrorStreamCaptureInvalidated;
  *graph = reinterpret_cast<cudaGraph_t>(new fake_cuda::Graph(*captured));
  ++scheduler().num_graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  Lock lock(scheduler().mutex);
  *executable = reinterpret_cast<cudaGraphExec_t>(
      new fake_cuda::Graph(*reinterpret_cast<fake_cuda::Graph*>(graph)));
  ++scheduler().num_graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  Lock lock(scheduler().mutex);
  delete reinterpret_cast<fake_cuda::Graph*>(graph);
  --scheduler().num_graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return cudaGraphDestroy(reinterpret_cast<cudaGraph_t>(executable));
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  Lock lock(scheduler().mutex);
  if (const cudaError_t error = check(stream); error != cudaSuccess) return error;
  for (const Operation& operation : reinterpret_cast<fake_cuda::Graph*>(executable)->operations) {
    scheduler().enqueue(lock, stream, operation);
  }
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) {
  return "fake";
}
const char* cudaGetErrorName(cudaError_t error) {
  static thread_local char name[32];
  std::snprintf(name, sizeof name, "error %d", static_cast<int>(error));
  return name;
}

}  // extern "C"
