#include "checkpoint/format/hdf5_skeleton.h"

#include <hdf5.h>

#include <algorithm>
#include <map>
#include <utility>

#include "checkpoint/format/hdf5_handle.h"
#include "checkpoint/format/hdf5_memory_driver.h"
#include "core/error.h"

namespace sherd::checkpoint {
namespace {

/// Contiguous, allocated when it is created, never filled.
Hdf5Handle dataset_list() {
  Hdf5Handle list = hdf5_timeless_list(H5P_DATASET_CREATE);
  hdf5_checked(H5Pset_layout(list, H5D_CONTIGUOUS), "H5Pset_layout");
  hdf5_checked(H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY), "H5Pset_alloc_time");
  hdf5_checked(H5Pset_fill_time(list, H5D_FILL_TIME_NEVER), "H5Pset_fill_time");
  return list;
}

Hdf5Handle create_dataset(hid_t where, const std::string& name, hid_t type,
                          const std::vector<hsize_t>& shape) {
  const Hdf5Handle space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr),
                         "H5Screate_simple", H5Sclose);
  const Hdf5Handle list = dataset_list();
  return {H5Dcreate2(where, name.c_str(), type, space, H5P_DEFAULT, list, H5P_DEFAULT),
          "H5Dcreate2", H5Dclose};
}

void write_dataset(hid_t where, const std::string& name, hid_t type,
                   const std::vector<hsize_t>& shape, const void* data) {
  const Hdf5Handle dataset = create_dataset(where, name, type, shape);
  hdf5_checked(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), "H5Dwrite");
}

void write_label(hid_t file, const ShardInfo& shard, const ShardLabel& label) {
  hdf5_write_integer(file, "format_version", format_version(shard));
  hdf5_write_integer(file, "step", label.step);
  hdf5_write_integer(file, "shard", label.shard);
  hdf5_write_integer(file, "num_shards", label.num_shards);
  hdf5_write_text(file, "save_uuid", label.save_uuid);
}

void write_pieces(hid_t file, const ShardInfo& shard,
                  const std::vector<sharding::StateTensor>& tensors) {
  std::map<std::string, std::int64_t>
      rows;  // name -> row of /tensor-names, in order of the alphabet
  std::size_t width = 1;
  for (const ShardPiece& piece : shard.pieces) {
    const std::string& name = tensors[static_cast<std::size_t>(piece.tensor)].name;
    rows[name] = 0;
    width = std::max(width, name.size());
  }
  if (rows.empty()) return;
  std::string names;
  for (std::int64_t next = 0; auto& [name, row] : rows) {
    row = next++;
    names += name;
    names.resize(static_cast<std::size_t>(next) * width, '\0');
  }
  const Hdf5Handle text(H5Tcopy(H5T_C_S1), "H5Tcopy", H5Tclose);
  hdf5_checked(H5Tset_size(text, width), "H5Tset_size");
  hdf5_checked(H5Tset_strpad(text, H5T_STR_NULLPAD), "H5Tset_strpad");
  write_dataset(file, "tensor-names", text, {rows.size()}, names.data());

  const Hdf5Handle group = hdf5_group(file, "piece-table");
  for (const ShardDataset& dataset : shard.datasets) {
    std::vector<std::int64_t> table;
    const bool with_bands = has_bands(shard);
    const std::size_t width = with_bands ? 6 : 4;
    for (const ShardPiece& piece : shard.pieces) {
      const sharding::StateTensor& tensor = tensors[static_cast<std::size_t>(piece.tensor)];
      if (tensor.kind != dataset.kind) continue;
      table.insert(table.end(),
                   {rows[tensor.name], piece.first_element, piece.count, piece.position});
      if (with_bands) table.insert(table.end(), {piece.band.first, piece.band.columns});
    }
    write_dataset(group, dataset.kind, H5T_STD_I64LE, {table.size() / width, width}, table.data());
  }
}

/// The ranges of [0, file.bytes()) that aren't data.
std::vector<FileRange> outside(const MemoryFile& file, const ShardInfo& shard,
                               const std::vector<std::int64_t>& offsets) {
  std::vector<FileRange> ranges;
  std::int64_t position = 0;
  const auto up_to = [&](std::int64_t end) {
    SHERD_CHECK(position <= end, "libhdf5 placed a dataset at {}, before {}", end, position);
    if (position < end) ranges.push_back({position, file.range(position, end)});
  };
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    up_to(offsets[i]);
    position = offsets[i] + shard.datasets[i].bytes();
  }
  up_to(file.bytes());
  return ranges;
}

/// Space is taken at the end of the file and never reused, so datasets come in the order in which
/// they are created.
Hdf5Handle file_list() {
  Hdf5Handle list = hdf5_timeless_list(H5P_FILE_CREATE);
  hdf5_checked(H5Pset_file_space_strategy(list, H5F_FSPACE_STRATEGY_NONE, false, 1),
               "H5Pset_file_space_strategy");
  return list;
}

}  // namespace

Hdf5Skeleton build_hdf5_skeleton(const ShardLabel& label, const ShardInfo& shard,
                                 const std::vector<sharding::StateTensor>& tensors) {
  const auto lock = hdf5_lock();
  MemoryFile memory;
  Hdf5Skeleton skeleton;
  {
    const Hdf5Handle access(memory_access_list(memory), "H5Pcreate", H5Pclose);
    // From 1 byte on: a dataset of any size can be written directly.
    hdf5_checked(H5Pset_alignment(access, 1, kFileAlignment), "H5Pset_alignment");
    Hdf5Handle file(H5Fcreate("shard", H5F_ACC_TRUNC, file_list(), access), "H5Fcreate", H5Fclose);
    write_label(file, shard, label);
    write_pieces(file, shard, tensors);
    for (const ShardDataset& dataset : shard.datasets) {
      SHERD_CHECK(dataset.numel > 0, "an empty dataset {}", dataset.kind);
      const Hdf5Handle created =
          create_dataset(file, dataset.kind, hdf5_element_type(dataset.dtype),
                         {static_cast<hsize_t>(dataset.numel)});
      const haddr_t offset = H5Dget_offset(created);
      SHERD_CHECK(offset != HADDR_UNDEF && offset % kFileAlignment == 0, "{} starts at {}",
                  dataset.kind, offset);
      skeleton.offsets.push_back(static_cast<std::int64_t>(offset));
    }
    file.close("H5Fclose");
  }
  skeleton.file_bytes = memory.bytes();
  skeleton.metadata = outside(memory, shard, skeleton.offsets);
  return skeleton;
}

}  // namespace sherd::checkpoint
