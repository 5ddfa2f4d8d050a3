#include <csetjmp>
#include <cstdio>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include <ucontext.h>

#include "cuda_runtime_api.h"
#include "tests/emulated_gpu/launch_counts.h"

namespace emulated {

namespace {

std::mutex counts_mutex;
LaunchCounts counts;

}  // namespace

void launched(const char* kernel) {
  const std::lock_guard lock(counts_mutex);
  ++counts[kernel];
}
LaunchCounts launch_counts() {
  const std::lock_guard lock(counts_mutex);
  return counts;
}

alignas(128) unsigned char shared_memory[kSharedBytes];

namespace {

constexpr std::size_t kStackBytes = 48 << 10;
constexpr std::size_t kMostThreads = 1024;
constexpr int kWarp = 32;

enum class State { kReady, kAtBlock, kAtWarp, kDone };

struct Fiber {
  std::jmp_buf at;
  State state = State::kDone;
  bool started = false;
  dim3 index;
};

struct Warp {
  std::uint64_t slot[2][kWarp];
};

std::vector<Fiber> fibers;
// The stacks of all fibers, one after the other.
const std::unique_ptr<unsigned char[]> stacks(new unsigned char[kMostThreads * kStackBytes]);
std::vector<Warp> warps;
std::vector<unsigned char> turn;  // of each fiber's next exchange
std::jmp_buf scheduler;
std::size_t current = 0;
const std::function<void()>* body = nullptr;
std::mt19937_64 orders;  // of a launch: seeded with its number
std::uint64_t num_launches = 0;

// Each of N numbers once, in an order that a launch draws: any order can occur on a GPU.
class Order {
 public:
  explicit Order(std::size_t count) : count_(count), first_(orders() % count) {
    do {
      step_ = 1 + orders() % count;
    } while (std::gcd(step_, count) != 1);
  }
  std::size_t operator()(std::size_t k) const { return (first_ + k * step_) % count_; }

 private:
  std::size_t count_, first_, step_ = 1;
};

void stop(State state) {
  fibers[current].state = state;
  if (_setjmp(fibers[current].at) == 0) _longjmp(scheduler, 1);
}

// A fiber serves one block after another: making a new context takes longer than most threads' work.
void fiber_main() {
  for (;;) {
    (*body)();
    stop(State::kDone);
  }
}

void resume(std::size_t i) {
  current = i;
  watch_thread(i);
  threadIdx = fibers[i].index;
  if (_setjmp(scheduler) != 0) return;
  if (fibers[i].started) _longjmp(fibers[i].at, 1);
  fibers[i].started = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stacks.get() + i * kStackBytes;
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, fiber_main, 0);
  setcontext(&context);
}

// If all of [begin, end) that haven't ended wait at `state`, they continue.
bool release(std::size_t begin, std::size_t end, State state) {
  bool any = false;
  for (std::size_t i = begin; i < end; ++i) {
    if (fibers[i].state == State::kDone) continue;
    if (fibers[i].state != state) return false;
    any = true;
  }
  for (std::size_t i = begin; any && i < end; ++i) {
    if (fibers[i].state == state) fibers[i].state = State::kReady;
  }
  return any;
}

void run_block(std::size_t count, const Order& threads_in_order) {
  for (;;) {
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t i = threads_in_order(k);
      if (fibers[i].state == State::kReady) resume(i);
    }
    bool any = release(0, count, State::kAtBlock), live = false;
    for (std::size_t begin = 0; begin < count; begin += kWarp) {
      any |= release(begin, begin + kWarp < count ? begin + kWarp : count, State::kAtWarp);
    }
    for (std::size_t i = 0; i < count; ++i) live |= fibers[i].state != State::kDone;
    if (!live) return;
    if (!any) {
      std::fprintf(stderr, "emulated GPU: threads of block %u wait at different barriers\n",
                   blockIdx.x);
      std::abort();
    }
  }
}

}  // namespace

std::vector<Touched> run(Launch launch, dim3 grid, dim3 block,
                         const std::function<void()>& thread) {
  const std::size_t shared_bytes = launch.shared_bytes;
  const std::size_t count = std::size_t{block.x} * block.y * block.z;
  if (count == 0 || count > kMostThreads || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 || shared_bytes > kSharedBytes) {
    std::fprintf(stderr, "emulated GPU: a grid of %u x %u x %u blocks of %zu threads, %zu bytes\n",
                 grid.x, grid.y, grid.z, count, shared_bytes);
    std::abort();
  }
  // One launch at a time: ranks are threads, and a block's shared memory is the process's.
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  gridDim = grid, blockDim = block, body = &thread;
  orders.seed(++num_launches);
  if (fibers.size() < count) fibers.resize(count);
  warps.resize((fibers.size() + kWarp - 1) / kWarp);
  const std::size_t blocks = std::size_t{grid.x} * grid.y * grid.z;
  ignore_stacks(stacks.get(), kMostThreads * kStackBytes);
  launch.form.insert(launch.form.end(), {grid.x, grid.y, grid.z, count, shared_bytes});
  const bool watched = begin_watch(launch, device_memory());
  const Order blocks_in_order(blocks), threads_in_order(count);
  for (std::size_t k = 0; k < blocks; ++k) {
    const std::size_t b = blocks_in_order(k);
    blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                static_cast<unsigned>(b / grid.x / grid.y)};
    std::memset(shared_memory, 0xff, shared_bytes);
    watch_block(b);
    turn.assign(count, 0);
    for (std::size_t i = 0; i < count; ++i) {
      fibers[i].state = State::kReady;
      const auto n = static_cast<unsigned>(i);
      fibers[i].index = {n % block.x, n / block.x % block.y, n / block.x / block.y};
    }
    run_block(count, threads_in_order);
  }
  return watched ? end_watch() : launch.operands;
}

void wait_for_block() {
  stop(State::kAtBlock);
}
void wait_for_warp() {
  stop(State::kAtWarp);
}

std::uint64_t exchange_in_warp(std::uint64_t mine, int lane_mask) {
  const std::size_t me = current;
  Warp& warp = warps[me / kWarp];
  auto& slot = warp.slot[turn[me] ^= 1];
  slot[me % kWarp] = mine;
  wait_for_warp();
  return slot[(me % kWarp) ^ static_cast<std::size_t>(lane_mask)];
}

}  // namespace emulated
