#include "checkpoint/hdf5_skeleton.h"

#include <hdf5.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "checkpoint/hdf5_memory_driver.h"
#include "core/error.h"

namespace sherd::checkpoint {
namespace {

/// An identifier of libhdf5, closed in reverse order of opening.
class Handle {
 public:
  Handle(std::int64_t id, const char* call, herr_t (*close)(hid_t))
      : id_(hdf5_checked(id, call)), close_(close) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle& operator=(Handle&&) = delete;
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  operator hid_t() const { return id_; }  // NOLINT: it stands for the identifier
  void close(const char* call) { hdf5_checked(close_(std::exchange(id_, -1)), call); }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

Handle copy_of(hid_t type) {
  return {H5Tcopy(type), "H5Tcopy", H5Tclose};
}

Handle element_type(DType dtype) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "state of type {}", name_of(dtype));
  Handle type = copy_of(H5T_IEEE_F32LE);
  if (dtype == DType::kBF16) {
    // sign at bit 15, 8 bits of exponent from bit 7, 7 bits of mantissa from bit 0
    hdf5_checked(H5Tset_fields(type, 15, 7, 8, 0, 7), "H5Tset_fields");
    hdf5_checked(H5Tset_size(type, 2), "H5Tset_size");
    hdf5_checked(H5Tset_ebias(type, 127), "H5Tset_ebias");
  }
  return type;
}

/// A property list for objects that don't record when they were made.
Handle timeless(hid_t list_class) {
  Handle list(H5Pcreate(list_class), "H5Pcreate", H5Pclose);
  hdf5_checked(H5Pset_obj_track_times(list, false), "H5Pset_obj_track_times");
  return list;
}

/// Contiguous, allocated when it is created, never filled.
Handle dataset_list() {
  Handle list = timeless(H5P_DATASET_CREATE);
  hdf5_checked(H5Pset_layout(list, H5D_CONTIGUOUS), "H5Pset_layout");
  hdf5_checked(H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY), "H5Pset_alloc_time");
  hdf5_checked(H5Pset_fill_time(list, H5D_FILL_TIME_NEVER), "H5Pset_fill_time");
  return list;
}

Handle create_dataset(hid_t where, const std::string& name, hid_t type,
                      const std::vector<hsize_t>& shape) {
  const Handle space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr),
                     "H5Screate_simple", H5Sclose);
  const Handle list = dataset_list();
  return {H5Dcreate2(where, name.c_str(), type, space, H5P_DEFAULT, list, H5P_DEFAULT),
          "H5Dcreate2", H5Dclose};
}

void write_dataset(hid_t where, const std::string& name, hid_t type,
                   const std::vector<hsize_t>& shape, const void* data) {
  const Handle dataset = create_dataset(where, name, type, shape);
  hdf5_checked(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), "H5Dwrite");
}

void write_attribute(hid_t file, const char* name, hid_t type, const void* value) {
  const Handle space(H5Screate(H5S_SCALAR), "H5Screate", H5Sclose);
  const Handle attribute(H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT),
                         "H5Acreate2", H5Aclose);
  hdf5_checked(H5Awrite(attribute, type, value), "H5Awrite");
}

Handle fixed_string(std::size_t bytes) {
  Handle type = copy_of(H5T_C_S1);
  hdf5_checked(H5Tset_size(type, std::max<std::size_t>(bytes, 1)), "H5Tset_size");
  hdf5_checked(H5Tset_strpad(type, H5T_STR_NULLPAD), "H5Tset_strpad");
  return type;
}

void write_label(hid_t file, const ShardLabel& label) {
  const auto integer = [&](const char* name, std::int64_t value) {
    write_attribute(file, name, H5T_STD_I64LE, &value);
  };
  integer("format_version", kFormatVersion);
  integer("step", label.step);
  integer("shard", label.shard);
  integer("num_shards", label.num_shards);
  write_attribute(file, "save_uuid", fixed_string(label.save_uuid.size()), label.save_uuid.data());
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
  write_dataset(file, "tensor-names", fixed_string(width), {rows.size()}, names.data());

  const Handle group(
      H5Gcreate2(file, "piece-table", H5P_DEFAULT, timeless(H5P_GROUP_CREATE), H5P_DEFAULT),
      "H5Gcreate2", H5Gclose);
  for (const ShardDataset& dataset : shard.datasets) {
    std::vector<std::int64_t> table;
    for (const ShardPiece& piece : shard.pieces) {
      const sharding::StateTensor& tensor = tensors[static_cast<std::size_t>(piece.tensor)];
      if (tensor.kind != dataset.kind) continue;
      table.insert(table.end(),
                   {rows[tensor.name], piece.first_element, piece.count, piece.position});
    }
    write_dataset(group, dataset.kind, H5T_STD_I64LE, {table.size() / 4, 4}, table.data());
  }
}

/// What of [0, file.bytes()) isn't data.
std::vector<FileRange> outside(const MemoryFile& file, const ShardInfo& shard,
                               const std::vector<std::int64_t>& offsets) {
  std::vector<std::size_t> order(offsets.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return offsets[a] < offsets[b]; });
  std::vector<FileRange> ranges;
  std::int64_t position = 0;
  const auto up_to = [&](std::int64_t end) {
    if (position < end) ranges.push_back({position, file.range(position, end)});
  };
  for (const std::size_t i : order) {
    up_to(offsets[i]);
    position = offsets[i] + shard.datasets[i].bytes();
  }
  up_to(file.bytes());
  return ranges;
}

}  // namespace

Hdf5Skeleton build_hdf5_skeleton(const ShardLabel& label, const ShardInfo& shard,
                                 const std::vector<sharding::StateTensor>& tensors) {
  const auto lock = hdf5_lock();
  MemoryFile memory;
  Hdf5Skeleton skeleton;
  {
    const Handle access(memory_access_list(memory), "H5Pcreate", H5Pclose);
    // From 1 byte on: a dataset of any size can be written directly.
    hdf5_checked(H5Pset_alignment(access, 1, kFileAlignment), "H5Pset_alignment");
    Handle file(H5Fcreate("shard", H5F_ACC_TRUNC, timeless(H5P_FILE_CREATE), access), "H5Fcreate",
                H5Fclose);
    write_label(file, label);
    write_pieces(file, shard, tensors);
    for (const ShardDataset& dataset : shard.datasets) {
      CHECK(dataset.numel > 0, "an empty dataset {}", dataset.kind);
      const Handle created = create_dataset(file, dataset.kind, element_type(dataset.dtype),
                                            {static_cast<hsize_t>(dataset.numel)});
      const haddr_t offset = H5Dget_offset(created);
      CHECK(offset != HADDR_UNDEF && offset % kFileAlignment == 0, "{} starts at {}", dataset.kind,
            offset);
      skeleton.offsets.push_back(static_cast<std::int64_t>(offset));
    }
    file.close("H5Fclose");
  }
  skeleton.file_bytes = memory.bytes();
  skeleton.metadata = outside(memory, shard, skeleton.offsets);
  return skeleton;
}

}  // namespace sherd::checkpoint
