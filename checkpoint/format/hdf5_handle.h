/// Shared by hdf5_*.cpp: libhdf5 identifiers that close themselves, and the types and property
/// lists of all our files. libhdf5's own header is included only in the sources: hid_t is
/// std::int64_t and herr_t is int.
///
/// Callers hold `hdf5_lock()`.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "checkpoint/format/hdf5_memory_driver.h"
#include "core/dtype.h"

namespace sherd::checkpoint {

/// An identifier; the destructor closes it.
class Hdf5Handle {
 public:
  /// `id` is what libhdf5's function `call` returned; a negative one is a DataError.
  Hdf5Handle(std::int64_t id, const char* call, int (*close)(std::int64_t))
      : id_(hdf5_checked(id, call)), close_(close) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept
      : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&&) = delete;
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }
  operator std::int64_t() const { return id_; }  // NOLINT: used as the identifier
  /// Closes now, and throws if that fails. For files, whose last bytes are written here.
  void close(const char* call) { hdf5_checked(close_(std::exchange(id_, -1)), call); }

 private:
  std::int64_t id_;
  int (*close_)(std::int64_t);
};

/// f32, or bf16 as a float type of 8 exponent and 7 mantissa bits: HDF5 tools convert it to
/// float32, exactly.
Hdf5Handle hdf5_element_type(DType dtype);
/// A property list (H5P_DATASET_CREATE, ...) for objects that don't record when they were made.
Hdf5Handle hdf5_timeless_list(std::int64_t list_class);
Hdf5Handle hdf5_group(std::int64_t where, const std::string& name);
void hdf5_write_integer(std::int64_t where, const char* name, std::int64_t value);
void hdf5_write_text(std::int64_t where, const char* name, const std::string& value);

}  // namespace sherd::checkpoint
