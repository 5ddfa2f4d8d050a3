#include "engine/huggingface/stretch_writer.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "core/error.h"

namespace sherd::huggingface {
namespace {

constexpr std::int64_t kChunk = 1 << 18;  // elements
constexpr std::int64_t kStep = 4096, kLargest = 64 << 20;

// Rounds in place: `values` becomes elements of `dtype`. The number of the first that became
// infinite, or -1.
template <class T>
std::int64_t round_to(float* values, std::int64_t count) {
  std::int64_t infinite = -1;
  auto* bytes = reinterpret_cast<char*>(values);
  for (std::int64_t i = 0; i < count; ++i) {
    const T rounded(values[i]);
    if (infinite < 0 && !std::isfinite(static_cast<float>(rounded))) infinite = i;
    std::memcpy(bytes + i * static_cast<std::int64_t>(sizeof(T)), &rounded, sizeof(T));
  }
  return infinite;
}

}  // namespace

std::int64_t stretch_bytes(std::int64_t bytes_of_all) {
  return std::clamp(bytes_of_all / 256 / kStep * kStep, kStep, kLargest);
}

std::vector<Stretch> stretches_of(const checkpoint::SafetensorsPlan& plan,
                                  const std::vector<NamedShape>& theirs, DType dtype) {
  const auto element_bytes = static_cast<std::int64_t>(size_of(dtype));
  std::int64_t all = 0;
  for (const NamedShape& tensor : theirs) all += tensor.numel() * element_bytes;
  const std::int64_t most = stretch_bytes(all) / element_bytes;
  std::vector<Stretch> stretches;
  std::int64_t before = 0;
  for (std::size_t f = 0; f < plan.files.size(); ++f) {
    const checkpoint::SafetensorsPlan::File& file = plan.files[f];
    for (std::size_t i = 0; i < file.tensors.size(); ++i) {
      const int tensor = file.tensors[i];
      const std::int64_t numel = theirs[static_cast<std::size_t>(tensor)].numel();
      for (std::int64_t first = 0; first < numel; first += most) {
        const std::int64_t count = std::min(most, numel - first);
        stretches.push_back({static_cast<int>(f), tensor, first, count,
                             file.offsets[i] + first * element_bytes, before});
        before += count * element_bytes;
      }
    }
  }
  return stretches;
}

int rank_of(const Stretch& stretch, std::int64_t bytes, int num_ranks) {
  return static_cast<int>(static_cast<__int128>(stretch.bytes_before) * num_ranks / bytes);
}

StretchWriter::StretchWriter(const WeightMap& map, DType dtype, ReadElements read)
    : map_(map),
      dtype_(dtype),
      read_(std::move(read)),
      links_(map.theirs.size()),
      chunk_(kChunk),
      run_(kChunk) {
  for (const Link& link : map.links) {
    links_[static_cast<std::size_t>(link.theirs)].push_back({link.ours, link.box.inverse()});
  }
}

std::uint64_t StretchWriter::write(const Stretch& stretch, const checkpoint::File& file,
                                   const std::function<void()>& before_chunk) {
  const NamedShape& theirs = map_.theirs[static_cast<std::size_t>(stretch.tensor)];
  const auto element_bytes = static_cast<std::int64_t>(size_of(dtype_));
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  SHERD_CHECK(state && XXH3_64bits_reset(state.get()) == XXH_OK, "no checksum of {}", theirs.name);
  for (std::int64_t done = 0; done < stretch.count; done += kChunk) {
    before_chunk();
    const std::int64_t first = stretch.first + done, count = std::min(kChunk, stretch.count - done);
    const auto& links = links_[static_cast<std::size_t>(stretch.tensor)];
    if (links.empty()) {
      std::fill_n(chunk_.begin(), count, 0.0f);
    } else {
      fill_from(links, first, count, chunk_.data(), run_.data(), read_);
    }
    round(theirs, first, count);
    file.write_at(chunk_.data(), count * element_bytes, stretch.offset + done * element_bytes);
    XXH3_64bits_update(state.get(), chunk_.data(), static_cast<std::size_t>(count * element_bytes));
  }
  return XXH3_64bits_digest(state.get());
}

void StretchWriter::round(const NamedShape& theirs, std::int64_t first, std::int64_t count) {
  if (dtype_ == DType::kF32) return;
  float* values = chunk_.data();
  const std::int64_t infinite =
      dtype_ == DType::kBF16 ? round_to<BFloat16>(values, count) : round_to<Float16>(values, count);
  if (infinite < 0) return;
  throw DataError("element {} of tensor {} is beyond what {} holds; export as bf16 or f32",
                  first + infinite, theirs.name, name_of(dtype_));
}

}  // namespace sherd::huggingface
