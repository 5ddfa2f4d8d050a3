/// The interface between the program and libsherd_arrow.so, the optional library that reads Parquet
/// and Arrow files. Only plain structs cross it: the two may be compiled differently.
///
///   program                                   libsherd_arrow.so
///   arrow_rows.h  --dlopen, sherd_arrow_module()-->  module/  --links-->  libarrow, libparquet
///
/// A reader belongs to one thread at a time. Nothing throws; failures are text in ArrowError.
#pragma once

#include <cstdint>

namespace sherd::data {

/// Counted up whenever a struct or the meaning of a field below changes.
inline constexpr std::uint32_t kArrowInterface = 2;

/// One line, without the file's name; ends with a zero byte.
struct ArrowError {
  char text[2048];
};

struct ArrowRequest {
  const char* path;
  const char* column;  ///< texts of this column; null: whole rows, each as a JSON object
  int is_parquet;      ///< 0: an Arrow IPC file or stream
  /// 1: lists of whole numbers of this column; their bytes are the numbers as i32. -1 takes the
  /// place of nulls in them, and of what i32 can't hold.
  int is_ids;
};

/// Some rows. The module owns the memory, until the next call with the same reader.
struct ArrowTexts {
  std::int64_t num_rows;
  const char* bytes;            ///< of all rows, one after another
  const std::int64_t* ends;     ///< [num_rows] one past a row's last byte
  const std::uint8_t* is_null;  ///< [num_rows] 1: the column has no value
};

struct ArrowModule {
  std::uint32_t interface;    ///< kArrowInterface; first, and the first to be read
  const char* arrow_version;  ///< of the library that is linked
  /// Null on failure.
  void* (*open)(const ArrowRequest* request, ArrowError* error);
  /// 1: rows. 0: the end. -1: failure.
  int (*next)(void* reader, ArrowTexts* texts, ArrowError* error);
  void (*close)(void* reader);
};

/// The one symbol of the library.
extern "C" {
typedef const ArrowModule* (*ArrowModuleFunction)();
inline constexpr const char* kArrowModuleSymbol = "sherd_arrow_module";
}

}  // namespace sherd::data
