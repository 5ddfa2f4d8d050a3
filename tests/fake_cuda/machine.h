/// A machine with GPUs that aren't there: the CUDA runtime and NCCL as far as core/cuda_*.cpp,
/// sharding/comm/nccl*.cpp and shared_device.cpp call them, so that these sources run as they are,
/// compiled against NVIDIA's headers, on a machine without a GPU.
///
/// Work is queued and executed in any order that streams and events allow, chosen by a seed: some of it
/// when more is queued, the rest when a thread waits. The thread that waits executes, so no work is done for a
/// host that doesn't. A machine with an even seed is late: it does nothing before a thread waits, and then what was waited
/// for first, so that a host that reads a result or writes over an operand too early always does, and gets other bits.
/// Device memory is the host's; what a test must not do with it is its own concern.
///
/// Refused as CUDA refuses it: streams and events of another device, use after destruction, CUDA calls
/// from host functions, waiting during a capture. Work is checked for races, by the operands that it names (copies,
/// collectives, a library's matmuls and attention) or by what it turns out to touch (our kernels): two
/// accesses to the same bytes, one of them a write, that no chain of streams, events, collectives and
/// host waits puts in order.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

struct CUstream_st;

namespace fake_cuda {

struct Machine {
  int num_devices = 1;
  std::uint64_t seed = 1;
  int driver_version = 13000;
  int nccl_version = 0;                   ///< 0: that of the header
  std::vector<std::size_t> free_bytes{};  ///< of each device, 64 GiB where not said
  bool connecting_hangs = false;  ///< NCCL's connections are made when let_connect() is called
  int asking_takes_ms = 0;        ///< until NCCL says what has gone wrong by itself
  bool loads_lazily =
      false;  ///< a kernel's first launch on a device waits for all its earlier work
};

/// The machine from now on. Nothing of the last one may be left.
void start(const Machine& machine);

/// Devices that a context was made on: they were made current, or memory was asked for there.
std::set<int> contexts();
/// Streams, events, memory, graphs and communicators that weren't destroyed: "2 streams, ...".
std::string left_behind();
/// Races that were found, in a sentence each.
std::vector<std::string> races();
void forget_races();

/// Communicators of NCCL in a call that destroys or aborts them.
int communicators_ending();
void let_connect();
/// NCCL finds out by itself that a connection of this device is broken.
void break_connection(int device);

struct Access {
  const void* data = nullptr;
  std::size_t bytes = 0;
  bool write = false;
};

/// A piece of a stream's work.
struct Operation {
  std::string name;
  std::function<void()> run;
  std::vector<Access> operands{};
  /// Whether it can be run now; called under the machine's lock, any number of times. Empty: it can.
  std::function<bool()> ready{};
  /// What the run before has turned out to touch, on the same host thread.
  std::function<std::vector<Access>()> seen{};
};
/// All that a device can reach: its own memory and the host's page-locked, with their bytes, ascending.
std::vector<std::pair<const void*, std::size_t>> memory();
/// As a kernel's launch: the calling thread must be on the stream's device.
void launch(CUstream_st* stream, Operation operation);

}  // namespace fake_cuda
