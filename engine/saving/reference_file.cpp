#include "engine/saving/reference_file.h"

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/interchange/safetensors.h"
#include "core/error.h"
#include "engine/data/shuffle.h"

namespace sherd::engine {
namespace {

constexpr const char* kName = "log_probabilities";

}  // namespace

std::uint64_t hash_of_reference(const std::vector<double>& reference, std::uint64_t data) {
  std::uint64_t hash = data::hash_of(reference.size(), data);
  for (const double value : reference) {
    hash = data::hash_of(hash, std::bit_cast<std::uint64_t>(value));
  }
  return hash == 0 ? 1 : hash;
}

void write_reference(checkpoint::Disk& disk, const std::string& path,
                     const std::vector<double>& reference) {
  const std::size_t bytes = reference.size() * sizeof(double);
  nlohmann::ordered_json header;
  header[kName] = {{"dtype", "F64"}, {"shape", {reference.size()}}, {"data_offsets", {0, bytes}}};
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += text;
  file.append(reinterpret_cast<const char*>(reference.data()), bytes);
  checkpoint::replace_file(disk, path, file);
}

namespace {

// Nothing if it isn't the expected one.
std::optional<std::vector<double>> try_read(checkpoint::Disk& disk, const std::string& path,
                                            const ExpectedReference& expected) {
  const checkpoint::SafetensorsHeader header = checkpoint::read_safetensors_header(disk, path);
  const std::int64_t bytes = expected.num_answers * static_cast<std::int64_t>(sizeof(double));
  const bool fits = header.tensors.size() == 1 && header.tensors[0].name == kName &&
                    header.tensors[0].type == "F64" && header.tensors[0].bytes == bytes;
  if (!fits) return std::nullopt;
  std::vector<double> reference(static_cast<std::size_t>(expected.num_answers));
  const checkpoint::File file = checkpoint::open_followed(disk, path);
  const ssize_t done = file.try_read_at(reference.data(), bytes, header.tensors[0].begin);
  if (done != bytes || hash_of_reference(reference, expected.data) != expected.hash) {
    return std::nullopt;
  }
  return reference;
}

}  // namespace

FoundReference read_reference(checkpoint::Disk& disk, const std::vector<std::string>& paths,
                              const ExpectedReference& expected) {
  bool was_there = false;
  for (const std::string& path : paths) {
    if (!checkpoint::exists(disk, path)) continue;
    was_there = true;
    if (auto reference = try_read(disk, path, expected)) return {std::move(*reference), path};
  }
  throw DataError(
      "{}: {}. It has the log-probabilities of the run's answers, validation sets included, under "
      "the weights that the run began with, which can't be computed again. Put the run's own file "
      "there and keep its data, or train from the beginning.",
      paths.front(),
      was_there ? "isn't the reference of this run's checkpoint and data" : "isn't there");
}

}  // namespace sherd::engine
