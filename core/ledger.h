/// What a GPU would be asked to do, noted instead of done: a step of a recipe runs on a machine without
/// one, over memory that nobody touches, and its streams keep a ledger.
///
/// A `LedgerStream` has a clock. A launch takes as long as the ledger tells; an event stands for a moment of
/// the stream that recorded it, and a stream that waits for it goes on no earlier. So what ends when, and how long
/// a stream stands still, comes out as on a GPU whose kernels take exactly so long. The host has a clock, too:
/// each launch takes some of its time, and nothing begins before it was launched.
#pragma once

#include <array>
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
  std::int64_t read = 0, written = 0;  ///< bytes of the device's memory, of each operand once
  double flops = 0.0;         ///< matmuls and attention: two for a multiplication with its addition
  DType dtype = DType::kF32;  ///< matmuls and attention: of what is multiplied
  std::int64_t m = 0, n = 0,
               k = 0;         ///< of a matmul [m, n] over k; attention: k is the heads' width
  bool backward = false;      ///< of attention
  bool deterministic = true;  ///< as its stream
  std::string
      matmul{};  ///< of a matmul: all that chooses its algorithm (kernels/device_common/matmul_table.h)
};
using Launches = std::vector<Launch>;

/// One collective of a group (sharding/comm/communicator.h).
struct Exchange {
  std::string_view collective;  ///< "all_gather"
  std::int64_t bytes = 0;       ///< of what all ranks together complete, add or deal out
  std::vector<int> ranks;       ///< of the world
};

/// Told of everything, in the order of the calls. Answers in seconds.
class Ledger {
 public:
  virtual ~Ledger() = default;
  virtual double launch(const Launch& launch) = 0;
  virtual double exchange(const Exchange& exchange) = 0;
  /// Of the host's, for each call that reaches a stream.
  virtual double host_seconds_of_a_call() const = 0;

  double host_now = 0.0;  ///< the host's clock; streams move it
  /// What kernels of other streams than kCompute's took from the GPU while the computation went on, so that it took so
  /// much longer.
  double beside_compute = 0.0;
};

class LedgerStream final : public CudaStream {
 public:
  LedgerStream(StreamOptions options, CudaStreamOptions cuda, Ledger& ledger)
      : CudaStream(std::move(options)), cuda_(cuda), ledger_(ledger) {}

  void add(const Launches& launches);
  void add(const Exchange& exchange);
  /// When everything so far is done.
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

/// The stream as one that keeps a ledger; null: it really works.
LedgerStream* ledger_stream(Stream& stream);

}  // namespace sherd
