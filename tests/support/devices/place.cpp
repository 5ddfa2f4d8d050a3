#include "tests/support/devices/place.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace sherd::test {
namespace {

constexpr std::int64_t kFence = 64;
constexpr std::int64_t kArenaBytes = 128 << 20;
constexpr std::int64_t kStagingBytes = 48 << 20;  // more than any tensor or scratch

// Page-locked, and kept until the process ends: giving it back would race with the driver's end.
unsigned char* staging(std::int64_t bytes) {
  static const auto* memory = new std::shared_ptr<void>(pinned_memory(kStagingBytes));
  SHERD_CHECK(bytes <= kStagingBytes, "{} bytes in a test", bytes);
  return static_cast<unsigned char*>(memory->get());
}

class HostPlace final : public Place {
 public:
  Stream& stream() override { return *stream_; }
  ConstTensor in(ConstTensor host) override { return host; }
  Tensor out(Tensor host) override { return host; }
  Tensor scratch(std::int64_t num_bytes) override {
    return scratch_.emplace_back(DType::kU8, num_bytes);
  }
  void finish() override { stream_->synchronize(); }

 private:
  std::unique_ptr<Stream> stream_ = compute_stream(2);
  std::vector<OwnedTensor> scratch_;
};

// Kept as well: making a new one takes longer than most tests.
ArenaMemory& arena_on(int device) {
  static auto* arenas = new std::map<int, std::unique_ptr<ArenaMemory>>;
  use_cuda_device(device);
  std::unique_ptr<ArenaMemory>& arena = (*arenas)[device];
  if (!arena) arena = cuda_arena_memory(kArenaBytes);
  return *arena;
}

// All tensors of one run, one after the other in an arena; copies go through page-locked memory.
class GpuPlace final : public Place {
 public:
  explicit GpuPlace(CudaStreamOptions options)
      : arena_(arena_on(options.device)), stream_(make_cuda_stream({}, options)) {}

  Stream& stream() override { return *stream_; }
  ConstTensor in(ConstTensor host) override {
    if (!host) return host;
    return {send(host.data, host.bytes()), host.dtype, host.numel};
  }
  Tensor out(Tensor host) override {
    if (!host) return host;
    const Tensor device{send(host.data, host.bytes()), host.dtype, host.numel};
    out_.push_back({device, host});
    return device;
  }
  Tensor scratch(std::int64_t num_bytes) override {
    std::vector<unsigned char> fill(static_cast<std::size_t>(num_bytes), 0xff);
    // After its fence it begins at a multiple of 256, as an arena's buffers do: cuBLASLt requires
    // it.
    return {send(fill.data(), num_bytes, 256 - kFence), DType::kU8, num_bytes};
  }
  void finish() override {
    for (const auto& [device, host] : out_) {
      const unsigned char* bytes = fetch(static_cast<char*>(device.data), host.bytes());
      std::memcpy(host.data, bytes, static_cast<std::size_t>(host.bytes()));
    }
    for (const auto& [begin, end] : fences_) {
      EXPECT_TRUE(is_intact(begin) && is_intact(end)) << "a kernel wrote outside a tensor";
    }
    out_.clear();
  }

 private:
  char* send(const void* from, std::int64_t bytes) {
    return send(from, bytes,
                static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(from) % 64));
  }
  char* send(const void* from, std::int64_t bytes, std::int64_t misaligned) {
    const std::int64_t whole = bytes + 2 * kFence;
    const std::int64_t begin = (used_ + 255) / 256 * 256 + misaligned;
    SHERD_CHECK(begin + whole <= arena_.bytes(), "the test's tensors take more than {} bytes",
                arena_.bytes());
    used_ = begin + whole;
    unsigned char* staged = staging(whole);
    std::memset(staged, 0xff, static_cast<std::size_t>(whole));
    std::memcpy(staged + kFence, from, static_cast<std::size_t>(bytes));
    char* to = arena_.data() + begin;
    stream_->copy(staged, to, whole);
    stream_->synchronize();
    fences_.push_back({to, to + kFence + bytes});
    return to + kFence;
  }
  const unsigned char* fetch(const char* from, std::int64_t bytes) {
    unsigned char* staged = staging(bytes);
    stream_->copy(from, staged, bytes);
    stream_->synchronize();
    return staged;
  }
  bool is_intact(const char* fence) {
    const unsigned char* byte = fetch(fence, kFence);
    return std::all_of(byte, byte + kFence, [](unsigned char x) { return x == 0xff; });
  }

  struct Out {
    Tensor device, host;
  };
  struct Fences {
    const char *begin, *end;
  };
  ArenaMemory& arena_;
  std::unique_ptr<CudaStream> stream_;
  std::int64_t used_ = 0;
  std::vector<Out> out_;
  std::vector<Fences> fences_;
};

void skip_without_gpu() {
  static const std::string problem = cuda_system().problem;
  if (!problem.empty()) GTEST_SKIP() << "no GPU: " << problem;
}

}  // namespace

Outputs on_cpu(const Work& work) {
  HostPlace place;
  return work(place);
}

Outputs on_gpu(const Work& work, CudaStreamOptions options) {
  const auto run = [&] {
    GpuPlace place(options);
    return work(place);
  };
  Outputs first = run();
  EXPECT_TRUE(same_bits(run(), first)) << "the second run against the first";
  return first;
}

void OnGpu::SetUp() {
  skip_without_gpu();
}
void OnGpuInEveryType::SetUp() {
  skip_without_gpu();
}
void OnGpuInEveryType::same_bits_as_cpu(const Work& work, const std::string& label) {
  EXPECT_TRUE(same_bits(on_gpu(work), on_cpu(work))) << label;
}

::testing::AssertionResult same_bits(const Outputs& actual, const Outputs& expected) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure()
           << actual.size() << " outputs, expected " << expected.size();
  }
  for (std::size_t i = 0; i < actual.size(); ++i) {
    auto same = same_bits(ConstTensor(actual[i]), ConstTensor(expected[i]));
    if (!same) return same << " (output " << i << ")";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace sherd::test
