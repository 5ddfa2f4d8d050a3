/// GPUs as core sees them: what there is, streams and events on them, one arena of their memory,
/// and host memory that they can read. Everything that computes on them is in kernels/cuda.
///
/// Built without CUDA, `cuda_system` says so and everything else throws UsageError (no_cuda.cpp).
///
/// Devices  only those that a call names are touched: to ask what there is makes no context, which
///          would take some hundred MiB of a GPU that another process may be filling.
/// Threads  a stream belongs to the device that it was made for; whoever calls it, or launches a
///          kernel on it, has made that device its own first (`use_cuda_device`).
/// Errors   a CUDA call that fails is a TrainingError with the name of the call; no driver, or one
///          too old, or no such device is a UsageError.
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

/// Everything about this machine's GPUs; asks the driver anew at every call.
struct CudaSystem {
  int driver_version = 0;   ///< newest CUDA version that the driver runs, 13000 for 13.0; 0: none
  int runtime_version = 0;  ///< that this program was built with; 0: without CUDA
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

/// A library of NVIDIA's as the loader has found it: CUDA 12's and 13's have the same names.
struct LoadedLibrary {
  std::string name, version;  ///< "cuDNN", "9.13.1"
  int cuda = 0;               ///< that it was built for, as runtime_version; 0 where it doesn't say
  std::string path;

  /// "cuDNN 9.13.1 for CUDA 13.0 from /usr/lib/libcudnn.so.9".
  std::string text() const;
};
/// What is wrong with a library that was built for another major version of CUDA than `runtime`; else
/// "".
std::string library_problem(const LoadedLibrary& library, int runtime_version);

/// Makes `device` the one that the calling thread talks to.
void use_cuda_device(int device);

struct CudaStreamOptions {
  int device = 0;
  /// f32 products in TF32: 10 bits of mantissa go in, sums stay f32.
  bool allow_tf32 = false;
  /// Only algorithms whose result is a function of their input.
  bool deterministic = true;
  /// `Stream::section` keeps its work as a CUDA graph.
  bool graphs = false;
};

/// A queue on a GPU. `run` runs host code in the queue's order on a driver's thread: it must not
/// call CUDA; if it throws, `synchronize` rethrows that and host code enqueued later is dropped.
class CudaStream : public Stream {
 public:
  using Stream::Stream;
  DeviceKind device() const final { return DeviceKind::kCuda; }
  virtual const CudaStreamOptions& cuda() const = 0;
  virtual CUstream_st* handle() const = 0;
  /// Host memory that the device can write: a few results of a kernel that the caller waits for.
  /// One user at a time; `synchronize` before it is read.
  virtual void* mailbox() = 0;
  /// `calls` enqueue communication on this stream itself. The time that the device spends there counts as waited for
  /// `kind` (Event::counts_as).
  virtual void communicate(std::size_t kind, const std::function<void()>& calls) = 0;
  static constexpr std::int64_t kMailboxBytes = 8192;
};

std::unique_ptr<CudaStream> make_cuda_stream(StreamOptions options, CudaStreamOptions cuda);
/// Our own bug (SHERD_CHECK) if it isn't one.
CudaStream& cuda_stream(Stream& stream);

/// Device memory is mapped in pages of this size, so this is what an allocation really takes.
inline constexpr std::int64_t kCudaGranularity = 2 << 20;
inline std::int64_t cuda_arena_bytes(std::int64_t plan_bytes) {
  const std::int64_t pages = (plan_bytes + kCudaGranularity - 1) / kCudaGranularity;
  return (pages > 0 ? pages : 1) * kCudaGranularity;
}
/// One plain allocation of `cuda_arena_bytes(bytes)`. TrainingError says how much was free.
/// It is on the device that the calling thread talks to.
std::unique_ptr<ArenaMemory> cuda_arena_memory(std::int64_t bytes);
/// Page-locked host memory. TrainingError if the machine refuses to lock as much.
std::unique_ptr<ArenaMemory> pinned_arena_memory(std::int64_t bytes);

/// What all processes together, contexts and libraries included, hold of a GPU's memory now, and what
/// they leave. Makes `device` the calling thread's, and a context there if there is none yet.
std::int64_t cuda_bytes_in_use(int device);
std::int64_t cuda_bytes_free(int device);

/// Page-locked host memory: what copies to and from a GPU without a stop on the way. Given back
/// with the pointer, when no copy uses it any more.
std::shared_ptr<void> pinned_memory(std::int64_t bytes);

}  // namespace sherd
