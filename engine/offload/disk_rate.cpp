#include "engine/offload/disk_rate.h"

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "core/offload_home.h"
#include "core/thread.h"
#include "engine/offload/state_file.h"

namespace sherd::engine {
namespace {

constexpr std::int64_t kBlockBytes = std::int64_t{4} << 20;
constexpr std::size_t kThreads = 2;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

// Not zeros, which some drives don't write.
Memory random_block() {
  Memory memory(std::aligned_alloc(kDiskAlignment, kBlockBytes));
  auto* const words = static_cast<std::uint64_t*>(memory.get());
  std::mt19937_64 draw(1);
  for (std::int64_t i = 0; i < kBlockBytes / 8; ++i) words[i] = draw();
  return memory;
}

// Bytes per second of `each` on all blocks, by several threads.
double rate_of(std::size_t num_blocks, const std::function<void(std::size_t, void*)>& each) {
  std::vector<Memory> memory;
  for (std::size_t i = 0; i < kThreads; ++i) memory.push_back(random_block());
  std::vector<std::exception_ptr> errors(kThreads);
  std::vector<std::thread> threads;
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.push_back(start_thread("that measures a drive", [&, t] {
      try {
        for (std::size_t block = t; block < num_blocks; block += kThreads) {
          each(block, memory[t].get());
        }
      } catch (...) {
        errors[t] = std::current_exception();
      }
    }));
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return static_cast<double>(num_blocks) * static_cast<double>(kBlockBytes) / seconds.count();
}

}  // namespace

MeasuredDisk measure_disk(checkpoint::Disk& disk, const std::string& folder, std::int64_t bytes) {
  const auto num_blocks = static_cast<std::size_t>(bytes / kBlockBytes);
  StateFile file(disk, folder, std::vector(num_blocks, StateFile::BlockSize{kBlockBytes, false}));
  const auto write = [&](std::size_t block, void* memory) { file.write(block, 0, memory); };
  rate_of(num_blocks, write);  // the first writes to new blocks of a file are slower
  MeasuredDisk measured;
  measured.write = rate_of(num_blocks, write);
  measured.read =
      rate_of(num_blocks, [&](std::size_t block, void* memory) { file.read(block, 0, memory); });
  measured.direct = file.is_direct();
  return measured;
}

}  // namespace sherd::engine
