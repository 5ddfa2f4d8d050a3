#include "checkpoint/store/hdf5_index.h"

#include <hdf5.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>

#include "checkpoint/format/hdf5_handle.h"
#include "checkpoint/store/block_reader.h"
#include "core/error.h"

namespace sherd::checkpoint {
namespace {

Hdf5Handle simple_space(const std::vector<hsize_t>& shape) {
  return {H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr),
          "H5Screate_simple", H5Sclose};
}

// Bytes have no NaN, but the scales that belong to them have.
void set_nan_fill(hid_t list, hid_t type, DType dtype) {
  if (dtype == DType::kU8) {
    const std::uint8_t most = 255;
    hdf5_checked(H5Pset_fill_value(list, type, &most), "H5Pset_fill_value");
  } else if (dtype == DType::kBF16) {
    const BFloat16 nan(std::numeric_limits<float>::quiet_NaN());
    hdf5_checked(H5Pset_fill_value(list, type, &nan.bits), "H5Pset_fill_value");
  } else {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    hdf5_checked(H5Pset_fill_value(list, type, &nan), "H5Pset_fill_value");
  }
}

// Maps boxes of one tensor to ranges of shards. Spaces are reused, with a new selection for each
// mapping, because creating them is expensive.
class Mapper {
 public:
  Mapper(const Manifest& manifest, const sharding::StateTensor& tensor, hid_t list)
      : manifest_(manifest),
        tensor_(tensor),
        list_(list),
        space_(simple_space({tensor.shape.begin(), tensor.shape.end()})) {}

  void map(const StoredRun& run) {
    const ShardInfo& shard = manifest_.shards[static_cast<std::size_t>(run.shard)];
    const ShardDataset& dataset = shard.datasets[static_cast<std::size_t>(run.dataset)];
    const std::string file = shard_name(run.shard, static_cast<int>(manifest_.shards.size()));
    const std::string path = "/" + dataset.kind;
    const Hdf5Handle source = simple_space({static_cast<hsize_t>(dataset.numel)});
    // A band is a tensor of fewer columns, which begins at one of the tensor's.
    std::vector<std::int64_t> shape = tensor_.shape;
    shape.back() = run.band.columns;
    for (Hyperslab& box : hyperslabs_of(shape, run.first_element, run.count)) {
      box.start.back() += run.band.first;
      select(source, {run.position + box.first_element - run.first_element}, {box.numel});
      select(space_, box.start, box.count);
      hdf5_checked(H5Pset_virtual(list_, space_, file.c_str(), path.c_str(), source),
                   "H5Pset_virtual");
    }
  }
  hid_t space() const { return space_; }

 private:
  static void select(hid_t space, const std::vector<std::int64_t>& start,
                     const std::vector<std::int64_t>& count) {
    const std::vector<hsize_t> from(start.begin(), start.end());
    const std::vector<hsize_t> extent(count.begin(), count.end());
    hdf5_checked(
        H5Sselect_hyperslab(space, H5S_SELECT_SET, from.data(), nullptr, extent.data(), nullptr),
        "H5Sselect_hyperslab");
  }

  const Manifest& manifest_;
  const sharding::StateTensor& tensor_;
  hid_t list_;
  Hdf5Handle space_;
};

void create_tensor(hid_t group, const Manifest& manifest, const sharding::StateTensor& tensor,
                   std::span<const StoredRun> pieces) {
  const Hdf5Handle type = hdf5_element_type(tensor.dtype);
  const Hdf5Handle list = hdf5_timeless_list(H5P_DATASET_CREATE);
  set_nan_fill(list, type, tensor.dtype);
  Mapper mapper(manifest, tensor, list);
  for (const StoredRun& piece : pieces) mapper.map(piece);
  hdf5_checked(H5Sselect_all(mapper.space()), "H5Sselect_all");
  Hdf5Handle dataset(
      H5Dcreate2(group, tensor.kind.c_str(), type, mapper.space(), H5P_DEFAULT, list, H5P_DEFAULT),
      "H5Dcreate2", H5Dclose);
  dataset.close("H5Dclose");
}

void create_tensors(hid_t file, const Manifest& manifest) {
  const StoredElements elements(manifest);
  const Hdf5Handle root = hdf5_group(file, "tensors");
  // Kinds of one name share a group; the list may have all of one kind first.
  std::map<std::string_view, std::vector<int>> by_name;
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    by_name[manifest.tensors[i].name].push_back(static_cast<int>(i));
  }
  for (const auto& [name, numbers] : by_name) {
    const Hdf5Handle group = hdf5_group(root, std::string(name));
    for (const int number : numbers) {
      create_tensor(group, manifest, manifest.tensors[static_cast<std::size_t>(number)],
                    elements.pieces(number));
    }
  }
}

}  // namespace

std::vector<Hyperslab> hyperslabs_of(const std::vector<std::int64_t>& shape, std::int64_t first,
                                     std::int64_t count) {
  const std::size_t rank = shape.size();
  // Elements that one step along each dimension goes over.
  std::vector<std::int64_t> stride(rank, 1);
  for (std::size_t d = rank - 1; d > 0; --d) stride[d - 1] = stride[d] * shape[d];
  std::vector<Hyperslab> boxes;
  const std::int64_t end = first + count;
  for (std::int64_t at = first; at < end;) {
    // The outermost dimension of which a whole step begins here and fits.
    std::size_t d = 0;
    while (at % stride[d] != 0 || stride[d] > end - at) ++d;
    // As many steps as fit, up to the end of this dimension.
    const std::int64_t index = at / stride[d] % shape[d];
    const std::int64_t steps = std::min(shape[d] - index, (end - at) / stride[d]);
    Hyperslab box;
    box.first_element = at;
    box.numel = steps * stride[d];
    for (std::size_t k = 0; k < rank; ++k) {
      box.start.push_back(k <= d ? at / stride[k] % shape[k] : 0);
      box.count.push_back(k < d ? 1 : k == d ? steps : shape[k]);
    }
    at += box.numel;
    boxes.push_back(std::move(box));
  }
  return boxes;
}

std::string build_hdf5_index(const Manifest& manifest) {
  const auto lock = hdf5_lock();
  MemoryFile memory;
  {
    const Hdf5Handle access(memory_access_list(memory), "H5Pcreate", H5Pclose);
    const Hdf5Handle creation = hdf5_timeless_list(H5P_FILE_CREATE);
    Hdf5Handle file(H5Fcreate("index", H5F_ACC_TRUNC, creation, access), "H5Fcreate", H5Fclose);
    hdf5_write_integer(file, "format_version", format_version(manifest));
    hdf5_write_integer(file, "step", manifest.step);
    hdf5_write_text(file, "save_uuid", manifest.save_uuid);
    hdf5_write_text(file, "note",
                    "for people: what a missing shard holds reads as NaN and damage isn't noticed; "
                    "sherd verify --deep notices");
    create_tensors(file, manifest);
    file.close("H5Fclose");
  }
  return memory.range(0, memory.bytes());
}

}  // namespace sherd::checkpoint
