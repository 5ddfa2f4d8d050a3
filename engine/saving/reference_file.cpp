#include "engine/saving/reference_file.h"

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/interchange/safetensors.h"
#include "core/error.h"
#include "engine/data/shuffle.h"

namespace sherd::engine {
namespace {

constexpr const char* kName = "log_probabilities";

}  // namespace

std::uint64_t hash_of_reference(const std::vector<double>& reference) {
  std::uint64_t hash = data::hash_of(reference.size());
  for (const double value : reference)
    hash = data::hash_of(hash, std::bit_cast<std::uint64_t>(value));
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

std::vector<double> read_reference(checkpoint::Disk& disk, const std::string& path,
                                   std::int64_t num_answers, std::uint64_t hash) {
  constexpr const char* kAdvice =
      "the log-probabilities of the weights that this run began with can't be computed again; put "
      "the run's own file there, or train from the beginning";
  if (!checkpoint::exists(disk, path)) throw DataError("{}: isn't there: {}.", path, kAdvice);
  const checkpoint::SafetensorsHeader header = checkpoint::read_safetensors_header(disk, path);
  const std::int64_t bytes = num_answers * static_cast<std::int64_t>(sizeof(double));
  const bool fits = header.tensors.size() == 1 && header.tensors[0].name == kName &&
                    header.tensors[0].type == "F64" && header.tensors[0].bytes == bytes;
  std::vector<double> reference(static_cast<std::size_t>(num_answers));
  if (fits) {
    const checkpoint::File file = checkpoint::open_followed(disk, path);
    const ssize_t done = file.try_read_at(reference.data(), bytes, header.tensors[0].begin);
    if (done == bytes && hash_of_reference(reference) == hash) return reference;
  }
  throw DataError("{}: isn't the reference of this run's checkpoint: {}.", path, kAdvice);
}

}  // namespace sherd::engine
