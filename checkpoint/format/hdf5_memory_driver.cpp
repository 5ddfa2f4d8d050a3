#include "checkpoint/format/hdf5_memory_driver.h"

#include <hdf5.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/error.h"

namespace sherd::checkpoint {
namespace {

constexpr std::int64_t kPageBytes = 4096;
#if H5_VERSION_GE(1, 13, 0)
// Numbers of drivers from 256 to 511 are for those that aren't registered with HDF's makers.
constexpr H5FD_class_value_t kDriverNumber = 384;
#endif

/// What libhdf5 calls an open file. H5FD_t comes first: libhdf5 sees only that.
struct OpenFile {
  H5FD_t base;
  MemoryFile* file;
  haddr_t end_of_allocation;
};

OpenFile& of(H5FD_t* file) {
  return *reinterpret_cast<OpenFile*>(file);
}
const OpenFile& of(const H5FD_t* file) {
  return *reinterpret_cast<const OpenFile*>(file);
}

// libhdf5 frees what these return, with free().
void* copy_access(const void* access) {
  void* copy = std::malloc(sizeof(MemoryFile*));
  if (copy) std::memcpy(copy, access, sizeof(MemoryFile*));
  return copy;
}
herr_t free_access(void* access) {
  std::free(access);
  return 0;
}
void* access_of(H5FD_t* file) {
  return copy_access(&of(file).file);
}

H5FD_t* open_file(const char*, unsigned, hid_t access_list, haddr_t) {
  const void* access = H5Pget_driver_info(access_list);
  if (!access) return nullptr;
  auto* open = new OpenFile{};
  std::memcpy(&open->file, access, sizeof open->file);
  return &open->base;
}
herr_t close_file(H5FD_t* file) {
  delete &of(file);
  return 0;
}
int compare_files(const H5FD_t* a, const H5FD_t* b) {
  const auto left = reinterpret_cast<std::uintptr_t>(of(a).file);
  const auto right = reinterpret_cast<std::uintptr_t>(of(b).file);
  return left < right ? -1 : left > right;
}
herr_t query_features(const H5FD_t*, unsigned long* flags) {
  *flags = 0;
  return 0;
}
haddr_t end_of_allocation(const H5FD_t* file, H5FD_mem_t) {
  return of(file).end_of_allocation;
}
herr_t set_end_of_allocation(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  of(file).end_of_allocation = address;
  return 0;
}
haddr_t end_of_file(const H5FD_t* file, H5FD_mem_t) {
  return static_cast<haddr_t>(of(file).file->bytes());
}
herr_t read_bytes(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t bytes, void* to) {
  of(file).file->read(static_cast<std::int64_t>(address), to, static_cast<std::int64_t>(bytes));
  return 0;
}
// C++ exceptions must not pass through libhdf5's frames.
herr_t write_bytes(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t bytes,
                   const void* from) try {
  of(file).file->write(static_cast<std::int64_t>(address), from, static_cast<std::int64_t>(bytes));
  return 0;
} catch (const std::bad_alloc&) {
  return -1;
}
herr_t truncate_file(H5FD_t* file, hid_t, hbool_t) {
  of(file).file->resize(static_cast<std::int64_t>(of(file).end_of_allocation));
  return 0;
}

const H5FD_class_t& driver_class() {
  static const H5FD_class_t driver = [] {
    H5FD_class_t made{};
#if H5_VERSION_GE(1, 13, 0)
    made.version = H5FD_CLASS_VERSION;
    made.value = kDriverNumber;
#endif
    made.name = "sherd-memory";
    made.maxaddr = HADDR_MAX >> 1;  // offsets are signed everywhere else
    made.fc_degree = H5F_CLOSE_STRONG;
    made.fapl_size = sizeof(MemoryFile*);
    made.fapl_get = access_of;
    made.fapl_copy = copy_access;
    made.fapl_free = free_access;
    made.open = open_file;
    made.close = close_file;
    made.cmp = compare_files;
    made.query = query_features;
    made.get_eoa = end_of_allocation;
    made.set_eoa = set_end_of_allocation;
    made.get_eof = end_of_file;
    made.read = read_bytes;
    made.write = write_bytes;
    made.truncate = truncate_file;
    const H5FD_mem_t single[] = H5FD_FLMAP_SINGLE;
    std::copy(std::begin(single), std::end(single), made.fl_map);
    return made;
  }();
  return driver;
}

/// Throws if the process can't have as much more memory as libhdf5 asks for to start, or to lay out
/// a file of some hundred tensors. It takes small pieces, like libhdf5: the allocator takes them
/// from the same places, and none is given back before all are there.
void require_memory() {
  constexpr std::size_t kPieceBytes = std::size_t{64} << 10;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::array<std::unique_ptr<void, Free>, 96> pieces;
  for (auto& piece : pieces) {
    piece.reset(std::malloc(kPieceBytes));
    if (!piece) throw std::bad_alloc();
    *static_cast<volatile char*>(piece.get()) = 0;  // or the compiler leaves the whole thing out
  }
}

/// At exit libhdf5 would walk through what failed calls left, whose memory is freed. Files are
/// closed long before. This must run before any other libhdf5 call: if others call libhdf5 first,
/// as tests do, it keeps its clean-up.
void leave_nothing_for_exit() {
  [[maybe_unused]] static const herr_t kDone = H5dont_atexit();
}

herr_t take_description(unsigned, const H5E_error2_t* error, void* words) {
  auto& text = *static_cast<std::string*>(words);
  if (error->desc) text = error->desc;
  return 0;
}

}  // namespace

void MemoryFile::write(std::int64_t offset, const void* from, std::int64_t bytes) {
  const auto* source = static_cast<const char*>(from);
  bytes_ = std::max(bytes_, offset + bytes);
  while (bytes > 0) {
    const std::int64_t inside = offset % kPageBytes;
    const std::int64_t part = std::min(bytes, kPageBytes - inside);
    std::unique_ptr<char[]>& page = pages_[offset - inside];
    if (!page) page = std::make_unique<char[]>(kPageBytes);
    std::memcpy(page.get() + inside, source, static_cast<std::size_t>(part));
    source += part;
    offset += part;
    bytes -= part;
  }
}

void MemoryFile::read(std::int64_t offset, void* to, std::int64_t bytes) const {
  auto* target = static_cast<char*>(to);
  while (bytes > 0) {
    const std::int64_t inside = offset % kPageBytes;
    const std::int64_t part = std::min(bytes, kPageBytes - inside);
    const auto page = pages_.find(offset - inside);
    if (page == pages_.end()) {
      std::memset(target, 0, static_cast<std::size_t>(part));
    } else {
      std::memcpy(target, page->second.get() + inside, static_cast<std::size_t>(part));
    }
    target += part;
    offset += part;
    bytes -= part;
  }
}

std::string MemoryFile::range(std::int64_t begin, std::int64_t end) const {
  std::string bytes(static_cast<std::size_t>(end - begin), '\0');
  read(begin, bytes.data(), end - begin);
  return bytes;
}

std::int64_t MemoryFile::resident_bytes() const {
  return static_cast<std::int64_t>(pages_.size()) * kPageBytes;
}

std::unique_lock<std::mutex> hdf5_lock() {
  static std::mutex mutex;
  return std::unique_lock(mutex);
}

std::int64_t hdf5_checked(std::int64_t result, const char* call) {
  if (result >= 0) return result;
  std::string words = "no reason given";
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_description, &words);
  throw DataError("libhdf5: {}: {}", call, words);
}

void start_hdf5() {
  const auto lock = hdf5_lock();
  require_memory();
  leave_nothing_for_exit();
  hdf5_checked(H5open(), "H5open");
}

std::int64_t memory_access_list(MemoryFile& file) {
  require_memory();
  leave_nothing_for_exit();
  // Errors come back as results; libhdf5 would print them, too. The setting is per thread.
  hdf5_checked(H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr), "H5Eset_auto2");
  static const hid_t driver = H5FDregister(&driver_class());
  hdf5_checked(driver, "H5FDregister");
  const hid_t list = hdf5_checked(H5Pcreate(H5P_FILE_ACCESS), "H5Pcreate");
  const MemoryFile* pointer = &file;
  hdf5_checked(H5Pset_driver(list, driver, &pointer), "H5Pset_driver");
  // V110 has checksums of metadata; "latest" would mean something else in the next library.
  hdf5_checked(H5Pset_libver_bounds(list, H5F_LIBVER_V110, H5F_LIBVER_V110),
               "H5Pset_libver_bounds");
  return list;
}

}  // namespace sherd::checkpoint
