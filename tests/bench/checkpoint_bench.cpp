// How fast a checkpoint is saved, against raw direct writes to the same disk in the same run: the
// same bytes, from as many threads, in blocks of the same size, made durable at the end. The two
// take turns, so that what the disk does meanwhile meets both; the ratio is taken pair by pair.
//
//   ./dev bench checkpoint
//   ./dev bench checkpoint --directory /mnt/disk --bytes 4294967296 --pairs 9
//
// A save is all of it: from begin() on every rank to the checkpoint durable under its name.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/store/hdf5_index.h"
#include "checkpoint/store/step_directory.h"
#include "checkpoint/writer.h"

namespace {

using namespace sherd;
using checkpoint::kBlockBytes;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct Options {
  std::string directory = "build/bench-checkpoint";
  std::int64_t bytes = std::int64_t{1} << 30;
  int pairs = 7;
  int threads = checkpoint::WriterOptions{}.writes_in_flight;  ///< that write, per rank
};

/// Memory as a rank's arena gives it: aligned for direct writes, and touched.
class Memory {
 public:
  explicit Memory(std::int64_t bytes)
      : data_(static_cast<char*>(::operator new(static_cast<std::size_t>(bytes), kAlignment))),
        bytes_(bytes) {
    std::memset(data_, 1, static_cast<std::size_t>(bytes));
  }
  ~Memory() { ::operator delete(data_, kAlignment); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  char* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  char* data_;
  std::int64_t bytes_;
};

/// One rank: its slice of a model of one matrix with two moments, and its ring, as large as that.
struct Rank {
  Rank(int rank, int world, std::int64_t numel, const Options& options)
      : state(3 * 4 * numel), ring(3 * 4 * numel) {
    for (std::int64_t i = 0; i < 3 * numel; ++i) {
      // Finite, and nothing that a disk could make smaller.
      const std::uint32_t bits = static_cast<std::uint32_t>(i + rank) * 2654435761u ^ 0x5bd1e995u;
      const std::uint32_t finite = bits & 0xbfffffffu;
      std::memcpy(state.data() + 4 * i, &finite, 4);
    }
    int t = 0;
    for (const char* kind : {"param", "exp_avg", "exp_avg_sq"}) {
      slice.tensors.push_back({"matrix", kind, {world, numel}, DType::kF32});
      slice.pieces.push_back(
          {t, rank * numel, numel, {state.data() + 4 * t * numel, DType::kF32, numel}});
      ++t;
    }
    writer = std::make_unique<checkpoint::Writer>(
        checkpoint::WriterOptions{.directory = options.directory,
                                  .rank = rank,
                                  .world = world,
                                  .ring = {ring.data(), DType::kU8, ring.bytes()},
                                  .writes_in_flight = options.threads,
                                  .build_index = checkpoint::build_hdf5_index});
  }
  Memory state, ring;
  sharding::State slice;
  std::unique_ptr<checkpoint::Writer> writer;
};

struct Figures {
  double seconds = 0, fsync = 0, checking = 0, stalled = 0;
};

void must(bool done, const char* label) {
  if (!done) throw DataError("{}: {}", label, std::strerror(errno));
}

Figures write_raw(const std::vector<std::unique_ptr<Rank>>& ranks, const std::string& directory,
                  int threads_per_rank) {
  Figures figures;
  const auto begin = Clock::now();
  std::vector<std::thread> threads;
  std::vector<double> fsyncs(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] {
      const std::string path = fmt::format("{}/raw-{}", directory, r);
      const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_DIRECT, 0666);
      must(file >= 0, "a raw file for direct writes");
      const Memory& state = ranks[r]->state;
      std::atomic<std::int64_t> next{0};
      const auto work = [&] {
        for (;;) {
          const std::int64_t at = next++ * kBlockBytes;
          if (at >= state.bytes()) return;
          const auto bytes = static_cast<std::size_t>(std::min(kBlockBytes, state.bytes() - at));
          must(::pwrite(file, state.data() + at, bytes, at) == static_cast<ssize_t>(bytes),
               "a raw write");
        }
      };
      {
        std::vector<std::jthread> others;
        for (int i = 1; i < threads_per_rank; ++i) others.emplace_back(work);
        work();
      }
      const auto synced = Clock::now();
      must(::fsync(file) == 0, "a raw fsync");
      fsyncs[r] = Seconds(Clock::now() - synced).count();
      ::close(file);
    });
  }
  for (std::thread& thread : threads) thread.join();
  figures.seconds = Seconds(Clock::now() - begin).count();
  figures.fsync = *std::max_element(fsyncs.begin(), fsyncs.end());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::filesystem::remove(fmt::format("{}/raw-{}", directory, r));
  }
  return figures;
}

Figures save(const std::vector<std::unique_ptr<Rank>>& ranks, const std::string& directory) {
  Figures figures;
  const std::string uuid = checkpoint::make_save_uuid();
  const auto begin = Clock::now();
  for (const auto& rank : ranks) rank->writer->begin(1, uuid, rank->slice);
  for (const auto& rank : ranks) rank->writer->wait_copied();
  for (const auto& rank : ranks) {
    const checkpoint::SaveStatus status = rank->writer->wait();
    if (status.failure) throw DataError("{}", status.failure->message);
    figures.fsync = std::max(figures.fsync, Seconds(status.times.syncing).count());
    figures.checking += Seconds(status.times.checking).count();
    figures.stalled = std::max(figures.stalled, Seconds(status.times.stalled).count());
  }
  ranks[0]->writer->commit(std::make_shared<nlohmann::json>(nlohmann::json::object()));
  const checkpoint::SaveStatus status = ranks[0]->writer->wait();
  if (status.failure) throw DataError("{}", status.failure->message);
  figures.seconds = Seconds(Clock::now() - begin).count();
  for (const auto& rank : ranks) rank->writer->finish();
  checkpoint::remove_checkpoint(checkpoint::posix_disk(), directory, 1, "bench");
  return figures;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

void measure(const Options& options, int world) {
  // Whole pages, so that the raw files can be written directly to their last byte.
  const std::int64_t numel = options.bytes / (3 * 4 * world) / 1024 * 1024;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < world; ++r) {
    ranks.push_back(std::make_unique<Rank>(r, world, numel, options));
  }
  const double mib = static_cast<double>(3 * 4 * numel * world) / (1 << 20);
  std::vector<double> raw, saved, ratio, raw_fsync, fsync, checking, stalled;
  for (int pair = 0; pair <= options.pairs; ++pair) {
    Figures figures[2];  // raw, saved; which one comes first changes from pair to pair
    for (const int which : {pair % 2, 1 - pair % 2}) {
      ::sync();  // what the one before has removed is gone
      figures[which] = which == 0 ? write_raw(ranks, options.directory, options.threads)
                                  : save(ranks, options.directory);
    }
    if (pair == 0) continue;  // a warm-up
    raw.push_back(mib / figures[0].seconds);
    saved.push_back(mib / figures[1].seconds);
    ratio.push_back(figures[0].seconds / figures[1].seconds);
    raw_fsync.push_back(figures[0].fsync * 1e3);
    fsync.push_back(figures[1].fsync * 1e3);
    checking.push_back(figures[1].checking * 1e3);
    stalled.push_back(figures[1].stalled * 1e3);
  }
  const auto [least, most] = std::minmax_element(ratio.begin(), ratio.end());
  double load = 0;
  ::getloadavg(&load, 1);
  fmt::print(
      "{} rank{}, {:.0f} MiB, {} threads, medians of {} pairs (load of this machine: {:.1f} on {} "
      "cores)\n",
      world, world == 1 ? "" : "s", mib, world * options.threads, options.pairs, load,
      std::thread::hardware_concurrency());
  fmt::print("  raw direct writes  {:6.0f} MiB/s  fsync {:.1f} ms\n", median(raw),
             median(raw_fsync));
  fmt::print(
      "  save               {:6.0f} MiB/s  fsync {:.1f} ms, checksums and scan {:.0f} ms of "
      "threads, copy {:.0f} ms\n",
      median(saved), median(fsync), median(checking), median(stalled));
  fmt::print("  save / raw         {:6.2f}        {:.2f} to {:.2f}\n", median(ratio), *least,
             *most);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) throw UsageError("{} needs a value", name);
    const std::string value = argv[i + 1];
    try {
      if (name == "--directory") {
        options.directory = value;
      } else if (name == "--bytes") {
        options.bytes = std::stoll(value);
      } else if (name == "--pairs") {
        options.pairs = std::stoi(value);
      } else if (name == "--threads") {
        options.threads = std::stoi(value);
      } else {
        throw UsageError("{}: known are --directory, --bytes, --pairs and --threads", name);
      }
    } catch (const std::logic_error&) {
      throw UsageError("{} {}: isn't a number", name, value);
    }
  }
  if (options.bytes < (std::int64_t{1} << 20) || options.pairs < 1 || options.threads < 1) {
    throw UsageError("at least 1 MiB, one pair and one thread");
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    std::filesystem::create_directories(options.directory);
    for (const int world : {1, 2}) measure(options, world);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "sherd_checkpoint_bench: {}\n", error.what());
    return error.exit_code();
  }
}
