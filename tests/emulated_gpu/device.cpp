// core/cuda_device.h and what of kernels/cuda calls NVIDIA's libraries, on the emulated GPU: memory
// is the host's, work is done at the call.
#include "core/cuda_device.h"

#include <atomic>
#include <cstring>

#include "core/cuda_error.h"
#include "core/thread_team.h"
#include "kernels/body/product_key.h"
#include "kernels/cpu/linear.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/forms.h"

namespace sherd {
namespace {

class EmulatedEvent final : public Event {};

class EmulatedStream final : public CudaStream {
 public:
  EmulatedStream(StreamOptions options, CudaStreamOptions cuda)
      : CudaStream(std::move(options)), cuda_(cuda), team_(1) {}
  const CudaStreamOptions& cuda() const override { return cuda_; }
  CUstream_st* handle() const override { return nullptr; }
  void* mailbox() override { return mailbox_; }
  void run(std::string_view, std::function<void()> work) override { work(); }
  std::unique_ptr<Event> make_event() const override { return std::make_unique<EmulatedEvent>(); }
  void record(Event&) override {}
  void wait(const Event&) override {}
  void synchronize() override {}
  std::chrono::nanoseconds waited() const override { return {}; }
  ThreadTeam& team() override { return team_; }

 private:
  CudaStreamOptions cuda_;
  ThreadTeam team_;
  alignas(16) unsigned char mailbox_[kMailboxBytes];
};

class CountedMemory final : public ArenaMemory {
 public:
  explicit CountedMemory(std::int64_t bytes) : memory_(host_arena_memory(bytes)) {
    all_bytes += bytes;
  }
  ~CountedMemory() override { all_bytes -= bytes(); }
  char* data() const override { return memory_->data(); }
  std::int64_t bytes() const override { return memory_->bytes(); }
  std::int64_t resident_bytes() const override { return 0; }
  void zero(void* data, std::int64_t bytes) override { memory_->zero(data, bytes); }
  void allow(void* data, std::int64_t bytes) noexcept override { memory_->allow(data, bytes); }
  void forbid(void* data, std::int64_t bytes) noexcept override { memory_->forbid(data, bytes); }

  static inline std::atomic<std::int64_t> all_bytes = 0;

 private:
  std::unique_ptr<ArenaMemory> memory_;
};

}  // namespace

void check_cuda(cudaError_t, std::string_view) {}
CudaSystem cuda_system() {
  CudaSystem system;
  CudaDevice& device = system.devices.emplace_back();
  device.name = "emulated";
  device.total_bytes = device.free_bytes = std::int64_t{4} << 30;
  return system;
}
void use_cuda_device(int) {}
std::unique_ptr<CudaStream> make_cuda_stream(StreamOptions options, CudaStreamOptions cuda) {
  return std::make_unique<EmulatedStream>(std::move(options), cuda);
}
std::unique_ptr<ArenaMemory> cuda_arena_memory(std::int64_t bytes) {
  return std::make_unique<CountedMemory>(cuda_arena_bytes(bytes));
}
std::int64_t cuda_bytes_in_use(int) {
  return CountedMemory::all_bytes;
}
std::unique_ptr<ArenaMemory> pinned_arena_memory(std::int64_t bytes) {
  return host_arena_memory(bytes);
}
std::shared_ptr<void> pinned_memory(std::int64_t bytes) {
  return {std::malloc(static_cast<std::size_t>(bytes)), std::free};
}

namespace kernels::cuda {
namespace {

// The CPU's scratch for 16-bit products is larger than cuBLASLt's at some shapes.
Tensor host_scratch(const LinearShape& shape, DType dtype) {
  thread_local std::vector<float> scratch;
  scratch.resize(static_cast<std::size_t>(cpu::linear_workspace_bytes(shape, dtype, 1) / 4 + 1));
  return {scratch.data(), DType::kF32, static_cast<std::int64_t>(scratch.size())};
}

ActivationShape gelu_of(std::int64_t tokens, std::int64_t width) {
  return {ActivationKind::kGelu, tokens, width};
}

}  // namespace

void linear_forward(Stream& stream, const LinearForward& args) {
  LinearForward product = args;
  product.workspace = host_scratch(args.shape, args.x.dtype);
  if (args.gelu_input) product.y = args.gelu_input;
  cpu::linear_forward(stream.team(), product);
  if (!args.gelu_input) return;
  activation_forward(stream,
                     {gelu_of(args.shape.tokens, args.shape.outputs), args.gelu_input, args.y});
}

void linear_backward_input(Stream& stream, const LinearBackwardInput& args) {
  LinearBackwardInput product = args;
  product.workspace = host_scratch(args.shape, args.dy.dtype);
  cpu::linear_backward_input(stream.team(), product);
  if (!args.gelu_input) return;
  activation_backward(
      stream, {gelu_of(args.shape.tokens, args.shape.inputs), args.gelu_input, args.dx, args.dx});
}

void linear_backward_weight(Stream& stream, const LinearBackwardWeight& args) {
  LinearBackwardWeight product = args;
  product.workspace = host_scratch(args.shape, args.dy.dtype);
  product.dbias = {};
  cpu::linear_backward_weight(stream.team(), product);
  if (args.dbias) {
    sum_columns(stream, args.dy, args.shape, args.dbias, args.add_to_output, args.workspace);
  }
}

double seconds_on_device(Stream&, int, const std::function<void()>&, const std::function<void()>&) {
  return 0.0;
}

// What cuDNN would do is done by our own kernels here, with the CPU's mask.
void attention_forward(Stream& stream, const AttentionForward& args) {
  attention_tiles_forward(stream, args);
}
void attention_backward(Stream& stream, const AttentionBackward& args) {
  attention_tiles_backward(stream, args);
}

}  // namespace kernels::cuda
}  // namespace sherd
