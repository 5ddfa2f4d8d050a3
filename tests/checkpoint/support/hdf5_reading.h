/// Reads HDF5 files as any program would, for tests of what we write into them.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"

namespace sherd::test {

struct Hdf5Content {
  std::vector<hsize_t> shape;
  std::string raw;            ///< the elements' own bytes, unconverted
  std::vector<float> values;  ///< as libhdf5 converts them
  bool is_virtual = false;
};

/// libhdf5's complaint is not printed; `found` is false where the dataset can't be opened.
inline bool read_hdf5(const std::string& file_path, const std::string& dataset_path,
                      Hdf5Content& content) {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  const hid_t file = H5Fopen(file_path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (file < 0) return false;
  const hid_t dataset = H5Dopen2(file, dataset_path.c_str(), H5P_DEFAULT);
  if (dataset < 0) {
    H5Fclose(file);
    return false;
  }
  const hid_t space = H5Dget_space(dataset);
  const hid_t type = H5Dget_type(dataset);
  const hid_t list = H5Dget_create_plist(dataset);
  content.is_virtual = H5Pget_layout(list) == H5D_VIRTUAL;
  content.shape.resize(static_cast<std::size_t>(H5Sget_simple_extent_ndims(space)));
  H5Sget_simple_extent_dims(space, content.shape.data(), nullptr);
  const auto numel = static_cast<std::size_t>(H5Sget_simple_extent_npoints(space));
  content.raw.assign(numel * H5Tget_size(type), '\0');
  content.values.assign(numel, 0);
  const bool read =
      H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, content.raw.data()) >= 0 &&
      H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, content.values.data()) >= 0;
  for (const herr_t closed :
       {H5Pclose(list), H5Tclose(type), H5Sclose(space), H5Dclose(dataset), H5Fclose(file)}) {
    SHERD_CHECK(closed >= 0, "libhdf5 doesn't close what it opened");
  }
  return read;
}

}  // namespace sherd::test
