#include "engine/data/arrow/arrow_rows.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "core/error.h"
#include "engine/data/mapped_file.h"

namespace sherd::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFileName = "libsherd_arrow.so";

// Of several files that are opened at once, the first loads it.
const ArrowModule& arrow_module(const std::string& path) {
  static const ArrowModule* const module = &load_arrow_module(places_of_arrow_module(), path);
  return *module;
}

}  // namespace

bool is_table(std::string_view path) {
  return path.ends_with(".parquet") || path.ends_with(".arrow");
}

std::vector<std::string> places_of_arrow_module() {
  if (const char* place = std::getenv("SHERD_ARROW_MODULE")) return {place};
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  return {folder / kFileName, folder.parent_path() / kFileName,
          folder.parent_path() / "lib" / kFileName};
}

std::string arrow_text() {
  try {
    return fmt::format("Parquet and Arrow files, by Arrow {}",
                       arrow_module("Parquet and Arrow files").arrow_version);
  } catch (const DataError& error) {
    return error.what();
  }
}

const ArrowModule& load_arrow_module(const std::vector<std::string>& places,
                                     const std::string& path) {
  for (const std::string& place : places) {
    std::error_code error;
    if (!fs::exists(place, error)) continue;
    void* const library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      throw DataError("{}: can't be read, because {} can't be loaded ({}); run ./dev deps arrow.",
                      path, place, ::dlerror());
    }
    const auto get = reinterpret_cast<ArrowModuleFunction>(::dlsym(library, kArrowModuleSymbol));
    const ArrowModule* const module = get ? get() : nullptr;
    if (!module || module->interface != kArrowInterface) {
      throw DataError(
          "{}: can't be read, because {} belongs to another version of sherd (interface {}, not "
          "{}); build both from the same sources.",
          path, place, module ? std::to_string(module->interface) : "unknown", kArrowInterface);
    }
    return *module;
  }
  throw DataError(
      "{}: needs {}, which this build of sherd lacks; run ./dev deps arrow, and build again.", path,
      kFileName);
}

ArrowRows::ArrowRows(const std::string& path, const std::string& column, TableContent content)
    : path_(path), module_(arrow_module(path)) {
  const MappedFile file(path);  // what can't be opened, isn't a file, or is a pointer of Git LFS
  const ArrowRequest request = {.path = path.c_str(),
                                .column = column.empty() ? nullptr : column.c_str(),
                                .is_parquet = path.ends_with(".parquet") ? 1 : 0,
                                .is_ids = content == TableContent::kIds ? 1 : 0};
  ArrowError error{};
  reader_ = module_.open(&request, &error);
  if (!reader_) throw DataError("{}: {}", path_, error.text);
}

ArrowRows::~ArrowRows() {
  module_.close(reader_);
}

bool ArrowRows::next(Row& row) {
  if (row_ == texts_.num_rows) {
    ArrowError error{};
    const int result = module_.next(reader_, &texts_, &error);
    if (result < 0) throw DataError("{}: {}", path_, error.text);
    row_ = begin_ = 0;
    if (result == 0) {
      texts_ = {};
      return false;
    }
  }
  const std::int64_t end = texts_.ends[row_];
  row = {.text = {texts_.bytes + begin_, static_cast<std::size_t>(end - begin_)},
         .is_null = texts_.is_null[row_] != 0};
  begin_ = end;
  ++row_;
  return true;
}

}  // namespace sherd::data
