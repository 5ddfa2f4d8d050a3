#include "checkpoint/format/hdf5_handle.h"

#include <hdf5.h>

#include <algorithm>
#include <type_traits>

#include "core/error.h"

namespace sherd::checkpoint {
namespace {

static_assert(std::is_same_v<hid_t, std::int64_t> && std::is_same_v<herr_t, int>);

void write_attribute(hid_t where, const char* name, hid_t type, const void* value) {
  const Hdf5Handle space(H5Screate(H5S_SCALAR), "H5Screate", H5Sclose);
  const Hdf5Handle attribute(H5Acreate2(where, name, type, space, H5P_DEFAULT, H5P_DEFAULT),
                             "H5Acreate2", H5Aclose);
  hdf5_checked(H5Awrite(attribute, type, value), "H5Awrite");
}

}  // namespace

Hdf5Handle hdf5_element_type(DType dtype) {
  if (dtype == DType::kU8) return {H5Tcopy(H5T_STD_U8LE), "H5Tcopy", H5Tclose};
  SHERD_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "state of type {}", name_of(dtype));
  Hdf5Handle type(H5Tcopy(H5T_IEEE_F32LE), "H5Tcopy", H5Tclose);
  if (dtype == DType::kBF16) {
    // sign at bit 15, 8 bits of exponent from bit 7, 7 bits of mantissa from bit 0
    hdf5_checked(H5Tset_fields(type, 15, 7, 8, 0, 7), "H5Tset_fields");
    hdf5_checked(H5Tset_size(type, 2), "H5Tset_size");
    hdf5_checked(H5Tset_ebias(type, 127), "H5Tset_ebias");
  }
  return type;
}

Hdf5Handle hdf5_timeless_list(std::int64_t list_class) {
  Hdf5Handle list(H5Pcreate(list_class), "H5Pcreate", H5Pclose);
  hdf5_checked(H5Pset_obj_track_times(list, false), "H5Pset_obj_track_times");
  return list;
}

Hdf5Handle hdf5_group(std::int64_t where, const std::string& name) {
  const Hdf5Handle list = hdf5_timeless_list(H5P_GROUP_CREATE);
  return {H5Gcreate2(where, name.c_str(), H5P_DEFAULT, list, H5P_DEFAULT), "H5Gcreate2", H5Gclose};
}

void hdf5_write_integer(std::int64_t where, const char* name, std::int64_t value) {
  write_attribute(where, name, H5T_STD_I64LE, &value);
}

void hdf5_write_text(std::int64_t where, const char* name, const std::string& value) {
  const Hdf5Handle type(H5Tcopy(H5T_C_S1), "H5Tcopy", H5Tclose);
  hdf5_checked(H5Tset_size(type, std::max<std::size_t>(value.size(), 1)), "H5Tset_size");
  hdf5_checked(H5Tset_strpad(type, H5T_STR_NULLPAD), "H5Tset_strpad");
  write_attribute(where, name, type, value.c_str());
}

}  // namespace sherd::checkpoint
