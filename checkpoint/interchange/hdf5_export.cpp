#include "checkpoint/interchange/hdf5_export.h"

#include <fcntl.h>
#include <hdf5.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string_view>

#include "checkpoint/format/hdf5_handle.h"
#include "checkpoint/store/block_reader.h"
#include "core/error.h"

namespace sherd::checkpoint {
namespace {

constexpr std::size_t kChunkBytes = 1 << 20;
constexpr std::int64_t kDataAlignment = 64;

// The file without its data, and where the data goes.
struct Layout {
  MemoryFile memory;
  std::vector<std::int64_t> offsets;  // of each tensor in `numbers`
};

// Bytes stay bytes.
DType type_in_file(const sharding::StateTensor& tensor, DType dtype) {
  return tensor.dtype == DType::kU8 ? DType::kU8 : dtype;
}

void lay_out(Layout& layout, const Manifest& manifest, const std::vector<int>& numbers,
             DType dtype) {
  const auto lock = hdf5_lock();
  const Hdf5Handle access(memory_access_list(layout.memory), "H5Pcreate", H5Pclose);
  hdf5_checked(H5Pset_alignment(access, 1, kDataAlignment), "H5Pset_alignment");
  const Hdf5Handle creation = hdf5_timeless_list(H5P_FILE_CREATE);
  Hdf5Handle file(H5Fcreate("export", H5F_ACC_TRUNC, creation, access), "H5Fcreate", H5Fclose);
  hdf5_write_integer(file, "step", manifest.step);
  hdf5_write_text(file, "save_uuid", manifest.save_uuid);
  {
    const Hdf5Handle root = hdf5_group(file, "tensors");
    const Hdf5Handle list = hdf5_timeless_list(H5P_DATASET_CREATE);
    hdf5_checked(H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY), "H5Pset_alloc_time");
    hdf5_checked(H5Pset_fill_time(list, H5D_FILL_TIME_NEVER), "H5Pset_fill_time");
    std::map<std::string, Hdf5Handle> groups;
    for (const int number : numbers) {
      const auto& tensor = manifest.tensors[static_cast<std::size_t>(number)];
      auto group = groups.find(tensor.name);
      if (group == groups.end()) {
        group = groups.emplace(tensor.name, hdf5_group(root, tensor.name)).first;
      }
      const std::vector<hsize_t> shape(tensor.shape.begin(), tensor.shape.end());
      const Hdf5Handle space(
          H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr),
          "H5Screate_simple", H5Sclose);
      const Hdf5Handle type = hdf5_element_type(type_in_file(tensor, dtype));
      const Hdf5Handle dataset(H5Dcreate2(group->second, tensor.kind.c_str(), type, space,
                                          H5P_DEFAULT, list, H5P_DEFAULT),
                               "H5Dcreate2", H5Dclose);
      const haddr_t offset = H5Dget_offset(dataset);
      SHERD_CHECK(offset != HADDR_UNDEF, "no place for {}", tensor.name);
      layout.offsets.push_back(static_cast<std::int64_t>(offset));
    }
  }
  file.close("H5Fclose");
}

// Gathers converted elements and writes them in chunks.
class ElementWriter {
 public:
  explicit ElementWriter(const File& file) : file_(file) { chunk_.reserve(kChunkBytes); }

  void begin(std::int64_t offset, DType to) {
    offset_ = offset;
    to_ = to;
  }
  void add(std::string_view bytes, DType from) {
    // A block ends with a whole element: its size is a multiple of every element's.
    if (from == to_) {
      while (!bytes.empty()) {
        const std::size_t count = std::min(bytes.size(), kChunkBytes - chunk_.size());
        chunk_.append(bytes.substr(0, count));
        bytes.remove_prefix(count);
        if (chunk_.size() == kChunkBytes) flush();
      }
    } else if (from == DType::kF32) {
      convert<float>(bytes, [](float value) { return BFloat16(value); });
    } else {
      convert<BFloat16>(bytes, [](BFloat16 value) { return static_cast<float>(value); });
    }
  }
  void flush() {
    file_.write_at(chunk_.data(), std::ssize(chunk_), offset_);
    offset_ += std::ssize(chunk_);
    chunk_.clear();
  }

 private:
  template <class From, class Convert>
  void convert(std::string_view bytes, Convert value_of) {
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(From)) {
      From value;
      std::memcpy(&value, bytes.data() + i, sizeof value);
      const auto converted = value_of(value);
      chunk_.append(reinterpret_cast<const char*>(&converted), sizeof converted);
      if (chunk_.size() == kChunkBytes) flush();
    }
  }

  const File& file_;
  DType to_ = DType::kF32;
  std::string chunk_;
  std::int64_t offset_ = 0;
};

// What isn't data: [begin, end) of the file in memory.
void write_range(const File& file, const MemoryFile& memory, std::int64_t begin, std::int64_t end) {
  while (begin < end) {
    const std::int64_t stop = std::min<std::int64_t>(end, begin + kChunkBytes);
    const std::string bytes = memory.range(begin, stop);
    file.write_at(bytes.data(), std::ssize(bytes), begin);
    begin = stop;
  }
}

void write_metadata(const File& file, const Layout& layout,
                    const std::vector<std::int64_t>& data_bytes) {
  std::map<std::int64_t, std::int64_t> data;  // offset -> bytes
  for (std::size_t i = 0; i < layout.offsets.size(); ++i) data[layout.offsets[i]] = data_bytes[i];
  std::int64_t at = 0;
  for (const auto& [offset, bytes] : data) {
    write_range(file, layout.memory, at, offset);
    at = offset + bytes;
  }
  write_range(file, layout.memory, at, layout.memory.bytes());
}

void write_data(const File& file, const Checkpoint& checkpoint, const Layout& layout,
                const std::vector<int>& numbers, DType dtype) {
  const Manifest& manifest = checkpoint.manifest();
  const std::int64_t bytes = in_order_buffer_bytes(manifest);
  const auto memory = std::make_unique_for_overwrite<char[]>(static_cast<std::size_t>(bytes));
  BlockReader reader(checkpoint, {memory.get(), DType::kU8, bytes});
  ElementWriter writer(file);
  const StoredElements elements(manifest);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto& tensor = manifest.tensors[static_cast<std::size_t>(numbers[i])];
    writer.begin(layout.offsets[i], type_in_file(tensor, dtype));
    elements.visit(numbers[i], [&](const StoredRun& run) {
      reader.each(run, [&](std::string_view part) { writer.add(part, tensor.dtype); });
    });
    writer.flush();
  }
}

std::vector<int> chosen_tensors(const Checkpoint& checkpoint,
                                const std::vector<std::string>& kinds) {
  std::vector<int> numbers;
  const auto& tensors = checkpoint.manifest().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (kinds.empty() || std::find(kinds.begin(), kinds.end(), tensors[i].kind) != kinds.end()) {
      numbers.push_back(static_cast<int>(i));
    }
  }
  for (const std::string& kind : kinds) {
    if (std::none_of(tensors.begin(), tensors.end(),
                     [&kind](const auto& tensor) { return tensor.kind == kind; })) {
      throw UsageError("{}: holds no {} to export", checkpoint.path(), kind);
    }
  }
  return numbers;
}

}  // namespace

ExportResult export_file(Disk& disk, const Checkpoint& checkpoint, const ExportOptions& options) {
  SHERD_CHECK(options.dtype == DType::kF32 || options.dtype == DType::kBF16, "export as {}",
              name_of(options.dtype));
  const auto refuse_existing = [&options] {
    throw UsageError("{}: exists already; name another file or remove it", options.to);
  };
  if (exists(disk, options.to)) refuse_existing();
  const std::vector<int> numbers = chosen_tensors(checkpoint, options.kinds);
  const Manifest& manifest = checkpoint.manifest();
  Layout layout;
  lay_out(layout, manifest, numbers, options.dtype);
  std::vector<std::int64_t> data_bytes;
  for (const int number : numbers) {
    const auto& tensor = manifest.tensors[static_cast<std::size_t>(number)];
    data_bytes.push_back(tensor.numel() *
                         static_cast<std::int64_t>(size_of(type_in_file(tensor, options.dtype))));
  }
  const std::string temporary = fmt::format("{}.tmp-{:08x}", options.to, std::random_device()());
  File file(disk, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  try {
    write_metadata(file, layout, data_bytes);
    write_data(file, checkpoint, layout, numbers, options.dtype);
    file.sync();
    file.close();
    if (!rename_new(disk, temporary, options.to)) refuse_existing();
  } catch (...) {
    try {
      remove_file(disk, temporary);
    } catch (const DataError&) {  // what went wrong first is what should be heard
    }
    throw;
  }
  sync_directory(disk, folder_of(options.to));
  return {std::ssize(numbers), layout.memory.bytes()};
}

}  // namespace sherd::checkpoint
