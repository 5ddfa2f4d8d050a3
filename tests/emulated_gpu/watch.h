/// What the emulated GPU's kernels touch, and what is wrong with it.
///
/// The rewritten kernels are compiled with -fsanitize=thread, but without its library: the compiler calls a
/// function before each load and store, and these functions are ours. So accesses are those that the kernels
/// really make; they need no declaration. During a launch each is compared with what other threads did
/// before:
///
///   - two threads of a block, on the same bytes, one of them writing, without a barrier in between
///     (__syncthreads for all; __syncwarp for those of a warp; shuffles order nothing)
///   - two blocks, the same: nothing ever orders blocks
///   - a write that is neither to the device's memory, nor to shared memory, nor to an operand
///   - an access to the device's memory outside of the tensors that the front was given, a write to those
///     that it was given to be read (kernels/launches/operands.h)
///
/// After the launch, its reads and writes of the device's memory go to the machine's race detector
/// (tests/fake_cuda), which compares them with what other streams do. One launch of each kernel in each form is
/// watched, for 300,000 accesses. Later accesses run at full speed, and the detector gets the operands that
/// the watched launch has read and written. With SHERD_WATCH_ALL in the environment everything is watched, which
/// takes several times as long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace emulated {

struct Touched {
  const char *begin, *end;
  bool write;
};

inline Touched touched(const void* data, std::size_t bytes, bool write) {
  const auto* begin = static_cast<const char*>(data);
  return {begin, begin + bytes, write};
}

struct Piece {
  const char *begin, *end;
};

/// One launch of a kernel.
struct Launch {
  const char* kernel = "";
  std::size_t shared_bytes = 0;   ///< that it asks for
  std::vector<Touched> operands;  ///< what may be touched of the device's memory; empty: everything
  std::vector<std::uint64_t> form;  ///< what else its accesses depend on: its code, its numbers
};

/// The calling thread's launch is watched from now on, until `end_watch`; false: its like was watched before, and what
/// it touches is in `launch.operands`. `device`: the device's memory, ascending; empty: all memory may be it.
bool begin_watch(Launch& launch, std::vector<Piece> device);
/// What the launch has touched of the device's memory, ascending; reads and writes apart.
std::vector<Touched> end_watch();

/// The tensors of the front that is being called; empty where a kernel is launched by no front.
const std::vector<Touched>& operands_of_call();
/// Work of a library: it touches nothing but operands of the front that is being called.
void expect_operands(const char* name, const std::vector<Touched>& touched);

/// Where fibers have their stacks: accesses to them aren't checked.
void ignore_stacks(const void* begin, std::size_t bytes);

// From fibers.cpp.
void watch_block(std::size_t index);    ///< a new block begins
void watch_thread(std::size_t thread);  ///< this thread continues
void thread_met_block();                ///< the current thread has passed a barrier
void thread_met_warp();
void watch_atomic(void* to, std::size_t bytes);  ///< ordered with other atomic accesses

/// Everything that was found wrong, in a sentence each; at most 20.
std::vector<std::string> faults();
void forget_faults();

}  // namespace emulated
