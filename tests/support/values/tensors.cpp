#include "tests/support/values/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "kernels/isa.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

namespace sherd::test {
namespace {

constexpr std::size_t kFence = 64;
constexpr unsigned char kFill = 0xff;

std::uint64_t splitmix(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15ull;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

double read(ConstTensor tensor, std::int64_t i) {
  switch (tensor.dtype) {
    case DType::kF32:
      return static_cast<double>(tensor.as<float>()[i]);
    case DType::kF64:
      return tensor.as<double>()[i];
    case DType::kBF16:
      return static_cast<double>(static_cast<float>(tensor.as<BFloat16>()[i]));
    case DType::kF16:
      return static_cast<double>(static_cast<float>(tensor.as<Float16>()[i]));
    case DType::kI32:
      return tensor.as<std::int32_t>()[i];
    case DType::kU8:
      return tensor.as<std::uint8_t>()[i];
  }
  return 0.0;
}

void write(const Tensor& tensor, std::int64_t i, double value) {
  const auto narrow = static_cast<float>(value);
  switch (tensor.dtype) {
    case DType::kF32:
      tensor.as<float>()[i] = narrow;
      break;
    case DType::kF64:
      tensor.as<double>()[i] = value;
      break;
    case DType::kBF16:
      tensor.as<BFloat16>()[i] = BFloat16(narrow);
      break;
    case DType::kF16:
      tensor.as<Float16>()[i] = Float16(narrow);
      break;
    case DType::kI32:
      tensor.as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
      break;
    case DType::kU8:
      tensor.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(value);
      break;
  }
}

bool is_fence(const unsigned char* bytes) {
  return std::all_of(bytes, bytes + kFence, [](unsigned char byte) { return byte == kFill; });
}

}  // namespace

Values random_values(std::int64_t numel, std::uint64_t seed, double scale) {
  Values values(static_cast<std::size_t>(numel));
  for (double& value : values) {
    value = scale * (2.0 * static_cast<double>(splitmix(seed) >> 11) / 9007199254740992.0 - 1.0);
  }
  return values;
}

std::vector<std::int32_t> random_tokens(std::int64_t numel, std::int64_t bound,
                                        std::uint64_t seed) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(numel));
  for (std::int32_t& token : tokens) {
    token = static_cast<std::int32_t>(splitmix(seed) % static_cast<std::uint64_t>(bound));
  }
  return tokens;
}

OwnedTensor::OwnedTensor(DType dtype, std::int64_t numel) : tensor_{nullptr, dtype, numel} {
  const auto num_bytes = static_cast<std::size_t>(tensor_.bytes());
  block_ = static_cast<unsigned char*>(
      ::operator new (num_bytes + 2 * kFence, std::align_val_t{kFence}));
  std::memset(block_, kFill, num_bytes + 2 * kFence);
  tensor_.data = block_ + kFence;
  ASAN_POISON_MEMORY_REGION(block_, kFence);
  ASAN_POISON_MEMORY_REGION(block_ + kFence + num_bytes, kFence);
}

OwnedTensor::OwnedTensor(DType dtype, const Values& values)
    : OwnedTensor(dtype, static_cast<std::int64_t>(values.size())) {
  for (std::int64_t i = 0; i < numel(); ++i) write(tensor_, i, values[static_cast<std::size_t>(i)]);
}

OwnedTensor::OwnedTensor(const std::vector<std::int32_t>& tokens)
    : OwnedTensor(DType::kI32, static_cast<std::int64_t>(tokens.size())) {
  std::copy(tokens.begin(), tokens.end(), tensor_.as<std::int32_t>());
}

OwnedTensor::OwnedTensor(const OwnedTensor& other)
    : OwnedTensor(other.tensor_.dtype, other.tensor_.numel) {
  std::memcpy(tensor_.data, other.tensor_.data, static_cast<std::size_t>(tensor_.bytes()));
}

OwnedTensor::OwnedTensor(OwnedTensor&& other) noexcept
    : block_(std::exchange(other.block_, nullptr)), tensor_(std::exchange(other.tensor_, {})) {}

OwnedTensor::~OwnedTensor() {
  if (!block_) return;
  const unsigned char* back = block_ + kFence + tensor_.bytes();
  ASAN_UNPOISON_MEMORY_REGION(block_, kFence);
  ASAN_UNPOISON_MEMORY_REGION(back, kFence);
  EXPECT_TRUE(is_fence(block_)) << "written before the first of " << numel() << " elements";
  EXPECT_TRUE(is_fence(back)) << "written after the last of " << numel() << " elements";
  ::operator delete (block_, std::align_val_t{kFence});
}

Values OwnedTensor::values() const {
  return values_of(tensor_);
}

Values values_of(ConstTensor tensor) {
  Values values(static_cast<std::size_t>(tensor.numel));
  for (std::int64_t i = 0; i < tensor.numel; ++i) {
    values[static_cast<std::size_t>(i)] = read(tensor, i);
  }
  return values;
}

Values rounded(DType dtype, const Values& values) {
  return OwnedTensor(dtype, values).values();
}
double rounded(DType dtype, double value) {
  return rounded(dtype, Values{value})[0];
}

Tolerance rounded_once(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return {0x1p-8 + 4e-6, 4e-6, 0.0};
    case DType::kF16:
      return {0x1p-11 + 4e-6, 4e-6, 0x1p-25};
    default:
      return {4e-6, 4e-6, 0.0};
  }
}

Tolerance attended(DType dtype) {
  Tolerance tolerance = rounded_once(dtype);
  if (dtype == DType::kBF16) tolerance.of_terms = 0x1p-8 + 4e-6;
  return tolerance;
}

namespace {
double root_mean_square(const Values& values) {
  double squares = 0.0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares / std::max<double>(1.0, static_cast<double>(values.size())));
}
}  // namespace

::testing::AssertionResult close(const Values& actual, const Values& expected, Tolerance tolerance,
                                 const Values& sizes_of_terms) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure()
           << actual.size() << " elements, expected " << expected.size();
  }
  const double rms = root_mean_square(expected);
  Values bounds(expected.size());
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    bounds[i] =
        tolerance.relative * std::abs(expected[i]) + tolerance.floor * rms + tolerance.absolute;
    if (!sizes_of_terms.empty()) bounds[i] += tolerance.of_terms * sizes_of_terms.at(i);
  }
  return within(actual, expected, bounds);
}

::testing::AssertionResult within(const Values& actual, const Values& expected,
                                  const Values& bounds) {
  if (actual.size() != expected.size() || actual.size() != bounds.size()) {
    return ::testing::AssertionFailure() << actual.size() << " elements, expected "
                                         << expected.size() << ", " << bounds.size() << " bounds";
  }
  std::size_t num_wrong = 0, first = 0, worst = 0;
  double worst_ratio = 0.0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    if (error <= bounds[i]) continue;
    if (num_wrong++ == 0) first = worst = i;
    const double ratio = error / bounds[i];
    if (ratio > worst_ratio) worst_ratio = ratio, worst = i;
  }
  if (num_wrong == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << num_wrong << " of " << actual.size() << " elements are off; first [" << first << "] is "
         << actual[first] << ", expected " << expected[first] << "; worst [" << worst << "] is "
         << actual[worst] << ", expected " << expected[worst] << ", " << worst_ratio
         << " times the tolerance (rms " << root_mean_square(expected) << ")";
}

::testing::AssertionResult same_bits(ConstTensor actual, ConstTensor expected) {
  if (actual.dtype != expected.dtype || actual.numel != expected.numel) {
    return ::testing::AssertionFailure()
           << actual.numel << " x " << name_of(actual.dtype) << ", expected " << expected.numel
           << " x " << name_of(expected.dtype);
  }
  const std::size_t size = size_of(actual.dtype);
  const auto* a = static_cast<const unsigned char*>(actual.data);
  const auto* e = static_cast<const unsigned char*>(expected.data);
  std::int64_t num_wrong = 0, first = 0;
  for (std::int64_t i = 0; i < actual.numel; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * size;
    if (std::memcmp(a + at, e + at, size) == 0) continue;
    if (num_wrong++ == 0) first = i;
  }
  if (num_wrong == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << num_wrong << " of " << actual.numel << " elements have other bits; first [" << first
         << "] is " << ::testing::PrintToString(read(actual, first)) << ", expected "
         << ::testing::PrintToString(read(expected, first));
}

std::unique_ptr<Stream> compute_stream(int num_threads) {
  StreamOptions options;
  options.num_threads = num_threads;
  return make_cpu_compute_stream(std::move(options));
}

Outputs on_any_number_of_threads(const std::function<Outputs(Stream&)>& run) {
  Outputs single = run(*compute_stream(1));
  for (const kernels::Isa isa : kernels::available_isas()) {
    if (isa == kernels::Isa::kAmx) continue;  // its bf16 matmuls give other bits
    const kernels::ForcedIsa forced(isa);
    for (const int num_threads : {1, 2, 4}) {
      const Outputs other = run(*compute_stream(num_threads));
      EXPECT_EQ(other.size(), single.size());
      for (std::size_t i = 0; i < std::min(other.size(), single.size()); ++i) {
        EXPECT_TRUE(same_bits(other[i], single[i]))
            << "output " << i << " on " << num_threads << " threads with " << kernels::name_of(isa);
      }
    }
  }
  return single;
}

}  // namespace sherd::test
