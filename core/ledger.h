/// Records what a GPU would be asked to do instead of doing it. So a step of a recipe runs on a
/// machine without a GPU, over memory that is never touched, and its streams keep a ledger.
///
/// A `LedgerStream` has a clock. A launch takes the time that the ledger predicts. An event marks a
/// time of the stream that recorded it; a stream that waits for the event continues no earlier. End
/// times and waits therefore match a GPU whose kernels take exactly the predicted times. The host
/// has a clock too: each launch takes host time, and no work begins before its launch.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/cuda_device.h"
#include "core/dtype.h"

namespace sherd {

/// What bounds a kernel.
enum class LaunchKind { kMemory, kMatmul, kAttention };

/// One kernel on a GPU.
struct Launch {
  std::string_view kernel;  ///< lives for ever: "norm_backward (weights)"
  LaunchKind kind = LaunchKind::kMemory;
  std::int64_t read = 0, written = 0;  ///< bytes of device memory; each operand counts once
  double flops = 0.0;                  ///< matmuls and attention: 2 per multiply-add
  DType dtype = DType::kF32;           ///< matmuls and attention: type of the operands
  std::int64_t m = 0, n = 0,
               k = 0;         ///< matmul [m, n] over k; attention: k is the head width
  bool backward = false;      ///< attention only
  bool deterministic = true;  ///< as set in its stream
  /// Of a matmul: all that selects its algorithm (kernels/device_common/matmul_table.h).
  std::string matmul{};
};
using Launches = std::vector<Launch>;

/// The name of a copy between a GPU and its host's memory. `read` and `written` are its bytes.
inline constexpr std::string_view kHostCopy = "copy to or from the host";
/// The name of work of the host's cores. `read` and `written` are bytes of the host's memory.
inline constexpr std::string_view kHostWork = "update on the host";

/// One collective of a group (sharding/comm/communicator.h).
struct Exchange {
  std::string_view collective;  ///< "all_gather"
  std::int64_t bytes = 0;       ///< of the full tensor that is gathered, reduced or exchanged
  std::vector<int> ranks;       ///< world ranks
};

/// Receives every call, in order. Answers in seconds.
class Ledger {
 public:
  virtual ~Ledger() = default;
  virtual double launch(const Launch& launch) = 0;
  virtual double exchange(const Exchange& exchange) = 0;
  /// Host time of each call that reaches a stream.
  virtual double host_seconds_of_a_call() const = 0;

  double host_now = 0.0;  ///< the host's clock; streams advance it
  /// How much longer the computation took because kernels of streams other than kCompute used the
  /// GPU at the same time.
  double beside_compute = 0.0;
  /// Which addresses are the host's; empty: none.
  std::function<bool(const void* address)> is_host;
};

class LedgerStream final : public CudaStream {
 public:
  LedgerStream(StreamOptions options, CudaStreamOptions cuda, Ledger& ledger)
      : CudaStream(std::move(options)), cuda_(cuda), ledger_(ledger) {}

  void add(const Launches& launches);
  void add(const Exchange& exchange);
  /// Instead of `run`: host code that moves these bytes of the host's memory.
  void add_host_work(std::int64_t read, std::int64_t written);
  /// When all work enqueued so far is done.
  double now() const { return now_; }

  // Stream
  void run(std::string_view label, std::function<void()> work) override;
  void copy(const void* from, void* to, std::int64_t bytes) override;
  void section(const std::string& key, const std::function<void()>& enqueue) override;
  bool keeps_sections() const override { return cuda_.graphs; }
  std::unique_ptr<Event> make_event() const override;
  void record(Event& event) override;
  void wait(const Event& event) override;
  void synchronize() override;
  std::chrono::nanoseconds waited() const override;
  std::chrono::nanoseconds waited_for(std::size_t kind) const override;
  ThreadTeam& team() override;

  // CudaStream
  const CudaStreamOptions& cuda() const override { return cuda_; }
  CUstream_st* handle() const override;
  void* mailbox() override { return mailbox_.data(); }
  void communicate(std::size_t kind, const std::function<void()>& calls) override;

 private:
  void begin_call();

  const CudaStreamOptions cuda_;
  Ledger& ledger_;
  double now_ = 0.0;
  bool in_graph_ = false;
  std::array<double, Event::kMostKinds> waited_{};
  std::array<char, kMailboxBytes> mailbox_{};
};

/// The stream as a ledger stream; null: it is a real stream.
LedgerStream* ledger_stream(Stream& stream);

}  // namespace sherd
