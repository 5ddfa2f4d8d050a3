#include "engine/huggingface/export.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "checkpoint/interchange/safetensors_layout.h"
#include "checkpoint/store/block_reader.h"
#include "core/error.h"

namespace sherd::huggingface {
namespace {

using checkpoint::BlockReader;
using checkpoint::Checkpoint;
using checkpoint::Disk;
using checkpoint::File;
using checkpoint::SafetensorsPlan;
using checkpoint::StoredRun;

constexpr std::int64_t kChunk = 1 << 18;  // elements

/// Any elements of a checkpoint's parameters.
class ParameterReader {
 public:
  ParameterReader(const Checkpoint& checkpoint, const std::vector<NamedShape>& parameters)
      : elements_(checkpoint.manifest()),
        bytes_(
            std::max(in_order_buffer_bytes(checkpoint.manifest()), 16 * checkpoint::kBlockBytes)),
        memory_(std::make_unique_for_overwrite<char[]>(static_cast<std::size_t>(bytes_))),
        reader_(checkpoint, {memory_.get(), DType::kU8, bytes_}) {
    const auto& tensors = checkpoint.manifest().tensors;
    for (const NamedShape& parameter : parameters) {
      const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) {
        return tensor.kind == "param" && tensor.name == parameter.name;
      });
      CHECK(
          found != tensors.end() && found->shape == parameter.shape && found->dtype == DType::kF32,
          "{} isn't the checkpoint's", parameter.name);
      numbers_.push_back(static_cast<int>(found - tensors.begin()));
    }
  }

  void read(int parameter, std::int64_t first, std::int64_t count, float* to) {
    const int number = numbers_[static_cast<std::size_t>(parameter)];
    elements_.visit(number, {}, first, count, [&](const StoredRun& run) {
      reader_.each(run, [&](std::string_view bytes) {
        std::memcpy(to, bytes.data(), bytes.size());
        to += bytes.size() / sizeof(float);
      });
    });
  }

 private:
  checkpoint::StoredElements elements_;
  std::int64_t bytes_;
  std::unique_ptr<char[]> memory_;
  BlockReader reader_;
  std::vector<int> numbers_;
};

// Rounds in place: `values` becomes elements of `dtype`. The number of the first that became infinite,
// or -1.
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

/// Writes tensors of theirs from links to ours.
class TensorWriter {
 public:
  TensorWriter(const WeightMap& map, DType dtype, ReadElements read)
      : map_(map), dtype_(dtype), read_(std::move(read)), links_(map.theirs.size()) {
    for (const Link& link : map.links) {
      links_[static_cast<std::size_t>(link.theirs)].push_back({link.ours, link.box.inverse()});
    }
  }

  /// Returns the tensor's checksum.
  std::uint64_t write(int tensor, const File& file, std::int64_t offset) {
    const NamedShape& theirs = map_.theirs[static_cast<std::size_t>(tensor)];
    const auto element_bytes = static_cast<std::int64_t>(size_of(dtype_));
    const std::int64_t numel = theirs.numel();
    const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                                XXH3_freeState);
    CHECK(state && XXH3_64bits_reset(state.get()) == XXH_OK, "no checksum of {}", theirs.name);
    for (std::int64_t first = 0; first < numel; first += kChunk) {
      const std::int64_t count = std::min(kChunk, numel - first);
      fill_from(links_[static_cast<std::size_t>(tensor)], first, count, chunk_.data(), run_.data(),
                read_);
      round(theirs, first, count);
      file.write_at(chunk_.data(), count * element_bytes, offset + first * element_bytes);
      XXH3_64bits_update(state.get(), chunk_.data(),
                         static_cast<std::size_t>(count * element_bytes));
    }
    return XXH3_64bits_digest(state.get());
  }

 private:
  void round(const NamedShape& theirs, std::int64_t first, std::int64_t count) {
    if (dtype_ == DType::kF32) return;
    float* values = chunk_.data();
    const std::int64_t infinite = dtype_ == DType::kBF16 ? round_to<BFloat16>(values, count)
                                                         : round_to<Float16>(values, count);
    if (infinite < 0) return;
    throw DataError("element {} of tensor {} is beyond what {} holds; export as bf16 or f32",
                    first + infinite, theirs.name, name_of(dtype_));
  }

  const WeightMap& map_;
  DType dtype_;
  ReadElements read_;
  std::vector<std::vector<Source>> links_;  // by tensor of theirs
  std::vector<float> chunk_ = std::vector<float>(kChunk), run_ = std::vector<float>(kChunk);
};

std::string hex(std::uint64_t checksum) {
  return fmt::format("{:016x}", checksum);
}

std::uint64_t checksum_of(const std::string& text) {
  return XXH3_64bits(text.data(), text.size());
}

// What the disk gives back must be what was written.
void read_back(Disk& disk, const std::string& path, const SafetensorsPlan::File& planned,
               const std::vector<std::int64_t>& bytes,
               const std::vector<std::uint64_t>& checksums) {
  const File file(disk, path, O_RDONLY | O_NOFOLLOW);
  const auto expect = [&](std::int64_t offset, std::int64_t length, std::uint64_t checksum) {
    std::string text(static_cast<std::size_t>(length), '\0');
    file.read_at(text.data(), length, offset);
    if (checksum_of(text) != checksum) {
      throw DataError("{}: bytes {} to {} aren't what was written", path, offset, offset + length);
    }
  };
  expect(0, std::ssize(planned.header), checksum_of(planned.header));
  for (std::size_t i = 0; i < bytes.size(); ++i) expect(planned.offsets[i], bytes[i], checksums[i]);
}

/// Everything inside the temporary folder.
ExportResult write_all(Disk& disk, const Checkpoint& checkpoint, const FolderToWrite& folder,
                       const std::string& temporary) {
  const WeightMap map = folder.map ? *folder.map : weight_map(*folder.family, folder.model, true);
  std::optional<ParameterReader> parameters;
  if (!folder.read) parameters.emplace(checkpoint, map.ours);
  std::vector<checkpoint::TensorToWrite> tensors;
  for (const NamedShape& theirs : map.theirs) tensors.push_back({theirs.name, theirs.shape});
  const SafetensorsPlan plan =
      checkpoint::plan_safetensors(tensors, folder.dtype, folder.shard_bytes, folder.weights_name);
  nlohmann::ordered_json report = {{"checkpoint", checkpoint.path()},
                                   {"step", checkpoint.manifest().step},
                                   {"save_uuid", checkpoint.manifest().save_uuid},
                                   {"dtype", name_of(folder.dtype)},
                                   {"checksum", "XXH3-64"}};
  const ReadElements from_checkpoint = [&](int ours, std::int64_t from, std::int64_t number,
                                           float* to) { parameters->read(ours, from, number, to); };
  TensorWriter writer(map, folder.dtype, folder.read ? folder.read : from_checkpoint);
  ExportResult result{std::ssize(tensors), std::ssize(plan.files), 0};
  for (const SafetensorsPlan::File& planned : plan.files) {
    std::vector<std::int64_t> bytes;
    std::vector<std::uint64_t> checksums;
    File file(disk, temporary + "/" + planned.name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
    file.write_at(planned.header.data(), std::ssize(planned.header), 0);
    for (std::size_t i = 0; i < planned.tensors.size(); ++i) {
      const std::uint64_t checksum = writer.write(planned.tensors[i], file, planned.offsets[i]);
      const auto& tensor = tensors[static_cast<std::size_t>(planned.tensors[i])];
      bytes.push_back(tensor.numel() * static_cast<std::int64_t>(size_of(folder.dtype)));
      checksums.push_back(checksum);
      report["tensors"][tensor.name] = {{"file", planned.name}, {"checksum", hex(checksum)}};
    }
    file.sync();
    file.close();
    if (folder.read_back) {
      read_back(disk, temporary + "/" + planned.name, planned, bytes, checksums);
    }
    report["headers"][planned.name] = {{"bytes", planned.header.size()},
                                       {"checksum", hex(checksum_of(planned.header))}};
    result.bytes += planned.bytes;
  }
  std::map<std::string, std::string> files = folder.files;
  if (!plan.index.empty()) files[folder.weights_name + ".safetensors.index.json"] = plan.index;
  for (const auto& [name, text] : files) {
    checkpoint::write_new_file(disk, temporary + "/" + name, text);
    report["files"][name] = {{"bytes", text.size()}, {"checksum", hex(checksum_of(text))}};
  }
  checkpoint::write_new_file(disk, temporary + "/" + kExportName, report.dump(1) + "\n");
  return result;
}

}  // namespace

ExportResult export_folder(Disk& disk, const Checkpoint& checkpoint, const FolderToWrite& folder) {
  const auto refuse_existing = [&folder] {
    throw UsageError("{}: exists already; name another folder or remove it", folder.to);
  };
  if (checkpoint::exists(disk, folder.to)) refuse_existing();
  const std::string temporary = fmt::format("{}.tmp-{}", folder.to, ::getpid());
  checkpoint::make_directory(disk, temporary);
  ExportResult result;
  try {
    result = write_all(disk, checkpoint, folder, temporary);
    checkpoint::sync_directory(disk, temporary);
    if (!checkpoint::rename_new(disk, temporary, folder.to)) refuse_existing();
  } catch (...) {
    try {
      checkpoint::remove_tree(disk, temporary);
    } catch (const DataError&) {  // what went wrong first is what should be heard
    }
    throw;
  }
  checkpoint::sync_directory(disk, checkpoint::folder_of(folder.to));
  return result;
}

}  // namespace sherd::huggingface
