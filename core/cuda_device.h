/// GPUs as core sees them: the available devices, their streams and events, an arena of GPU memory,
/// and host memory that GPUs can read. All GPU computation is in kernels/cuda.
///
/// Built without CUDA, `cuda_system` says so and everything else throws UsageError (no_cuda.cpp).
///
/// Devices  only devices that a call names are touched. Listing devices creates no context: one
///          would take several hundred MiB of a GPU that another process may be filling.
/// Threads  a stream belongs to the device it was made for. A thread makes that device current
///          (`use_cuda_device`) before it calls the stream or launches a kernel on it.
/// Errors   a failed CUDA call is a TrainingError with the name of the call. A missing or outdated
///          driver, or a missing device, is a UsageError.
#pragma once

#include "core/arena.h"
#include "core/stream.h"

struct CUstream_st;

namespace sherd {

struct CudaDevice {
  int index = 0;
  std::string name;  ///< "NVIDIA H100 80GB HBM3"
  std::string pci_bus;
  int major = 0, minor = 0;  ///< compute capability
  int num_multiprocessors = 0;
  std::int64_t total_bytes = 0;
};

/// Everything about this machine's GPUs; queries the driver at every call.
struct CudaSystem {
  int driver_version = 0;   ///< newest CUDA version that the driver runs, 13000 for 13.0; 0: none
  int runtime_version = 0;  ///< version that this program was built with; 0: without CUDA
  std::vector<CudaDevice> devices;
  std::string problem;  ///< why no GPU can be used; empty if one can
};
CudaSystem cuda_system();

/// "13.0" for 13000.
std::string cuda_version_text(int version);
/// Why a program built with `runtime` can't use a machine's `driver` and its GPUs; "" if it can.
/// A minor version newer than the driver's is fine, a major version isn't (CUDA Compatibility,
/// "minor version compatibility").
std::string cuda_problem(int driver_version, int runtime_version, int num_devices);
/// Throws UsageError with `cuda_system().problem`, or if there are fewer devices than asked for.
void require_cuda_devices(int num_devices);

/// An NVIDIA library that the loader found. CUDA 12 and CUDA 13 libraries have the same names.
struct LoadedLibrary {
  std::string name, version;  ///< "cuDNN", "9.13.1"
  int cuda = 0;               ///< CUDA version it was built for, as runtime_version; 0: unknown
  std::string path;

  /// "cuDNN 9.13.1 for CUDA 13.0 from /usr/lib/libcudnn.so.9".
  std::string text() const;
};
/// What is wrong with a library that was built for another CUDA major version than `runtime`;
/// otherwise "".
std::string library_problem(const LoadedLibrary& library, int runtime_version);

/// Makes `device` the calling thread's current device.
void use_cuda_device(int device);

struct CudaStreamOptions {
  int device = 0;
  /// f32 products in TF32: inputs keep 10 mantissa bits, sums stay f32.
  bool allow_tf32 = false;
  /// Only deterministic algorithms: the result depends on the input alone.
  bool deterministic = true;
  /// `Stream::section` keeps its work as a CUDA graph.
  bool graphs = false;
};

/// A queue on a GPU. `run` executes host code in the queue's order on a driver thread, so that code
/// must not call CUDA. If it throws, `synchronize` rethrows the error, and host code enqueued later
/// is dropped.
class CudaStream : public Stream {
 public:
  using Stream::Stream;
  DeviceKind device() const final { return DeviceKind::kCuda; }
  virtual const CudaStreamOptions& cuda() const = 0;
  virtual CUstream_st* handle() const = 0;
  /// Host memory that the device can write: for a few kernel results that the caller waits for. One
  /// user at a time; call `synchronize` before reading it.
  virtual void* mailbox() = 0;
  /// `calls` enqueues communication on this stream itself. The device time that it takes counts as
  /// waiting for `kind` (Event::counts_as).
  virtual void communicate(std::size_t kind, const std::function<void()>& calls) = 0;
  static constexpr std::int64_t kMailboxBytes = 8192;
};

std::unique_ptr<CudaStream> make_cuda_stream(StreamOptions options, CudaStreamOptions cuda);
/// A stream of another kind is our bug (SHERD_CHECK).
CudaStream& cuda_stream(Stream& stream);

/// Device memory is mapped in pages of this size, so an allocation takes a multiple of it.
inline constexpr std::int64_t kCudaGranularity = 2 << 20;
inline std::int64_t cuda_arena_bytes(std::int64_t plan_bytes) {
  const std::int64_t pages = (plan_bytes + kCudaGranularity - 1) / kCudaGranularity;
  return (pages > 0 ? pages : 1) * kCudaGranularity;
}
/// One plain allocation of `cuda_arena_bytes(bytes)` on the calling thread's current device.
/// TrainingError says how much memory was free.
std::unique_ptr<ArenaMemory> cuda_arena_memory(std::int64_t bytes);
/// Page-locked host memory. TrainingError if the machine refuses to lock as much.
std::unique_ptr<ArenaMemory> pinned_arena_memory(std::int64_t bytes);

/// GPU memory that all processes hold now, contexts and libraries included, and what is free. Makes
/// `device` the calling thread's current device, and creates a context if there is none yet.
std::int64_t cuda_bytes_in_use(int device);
std::int64_t cuda_bytes_free(int device);

/// Page-locked host memory: a GPU copies to and from it without an intermediate buffer. It is freed
/// with the pointer, when no copy uses it any more.
std::shared_ptr<void> pinned_memory(std::int64_t bytes);

}  // namespace sherd
