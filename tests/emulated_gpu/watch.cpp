#include "tests/emulated_gpu/watch.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "kernels/launches/operands.h"
#include "tests/emulated_gpu/cuda_runtime_api.h"

extern "C" char __data_start, _end;  // what the program has in memory for variables

namespace emulated {
namespace {

using Address = std::uintptr_t;

constexpr std::int64_t kMostAccesses = 300'000;
constexpr std::size_t kPage = 4096, kGranule = 4, kMostThreads = 1024, kMostFaults = 20;

/// One thread's access to some bytes of a granule.
struct Record {
  std::uint32_t block = 0;  // counted over all launches; 0: none
  std::uint16_t thread = 0;
  std::uint16_t block_epoch = 0, warp_epoch = 0;
  std::uint8_t bytes = 0;  // a bit each
  bool write = false, atomic = false;
};

struct Granule {
  std::array<Record, 8> records;
  std::uint8_t read = 0, written = 0;  // bytes, in this launch
};

enum class Kind : std::uint8_t { kIgnored, kShared, kDevice, kElsewhere };

struct Page {
  std::array<Granule, kPage / kGranule> granules;
  std::uint32_t launch = 0;
  Kind kind = Kind::kIgnored;
};

std::unordered_map<Address, std::unique_ptr<Page>> pages;
std::array<std::pair<Address, Page*>, 1024> recent{};
std::vector<std::pair<Address, Page*>> touched_pages;
std::vector<Piece> memory;
std::vector<Touched> allowed;
const char* kernel_name = "";
std::size_t shared_bytes = 0;
std::vector<std::size_t> block_indices;  // of this launch's blocks, as they came
std::vector<std::uint64_t> form_of_launch;
std::vector<Touched> operands_of_launch;
std::uint32_t launch_number = 0, block_number = 0, first_block = 1;
std::size_t current_thread = 0;
std::array<std::uint16_t, kMostThreads> block_epochs, warp_epochs;
Address stacks_begin = 0, stacks_end = 0;

std::mutex faults_mutex;
std::vector<std::string> all_faults;

std::int64_t num_accesses = 0;  // of this launch

bool watch_all() {
  static const bool kAll = std::getenv("SHERD_WATCH_ALL") != nullptr;
  return kAll;
}

// Kernels run on one host thread at a time; wrappers of others are compiled with the same calls.
thread_local bool watching = false;

// Of fronts that call one another.
thread_local std::vector<std::vector<Touched>> calls;

const bool kTold = [] {
  sherd::kernels::tell_operands = [](const sherd::kernels::Operands* of_call) {
    if (!of_call) return calls.pop_back();
    std::vector<Touched>& operands = calls.emplace_back();
    for (const auto& [data, bytes, written] : *of_call) {
      operands.push_back(touched(data, static_cast<std::size_t>(bytes), written));
    }
  };
  return true;
}();

void fault_of(const char* kernel, const std::string& what) {
  const std::lock_guard lock(faults_mutex);
  if (all_faults.size() < kMostFaults) all_faults.push_back(std::string(kernel) + ": " + what);
}
void fault(const std::string& what) {
  fault_of(kernel_name, what);
}
std::string thread_name(std::uint32_t block, std::size_t thread) {
  return "thread " + std::to_string(thread) + " of block " +
         std::to_string(block_indices[block - first_block]);
}

Kind kind_of(Address page) {
  if (page + kPage > stacks_begin && page < stacks_end) return Kind::kIgnored;
  const auto shared_begin = reinterpret_cast<Address>(&__data_start) / kPage * kPage;
  if (page >= shared_begin && page < reinterpret_cast<Address>(&_end)) return Kind::kShared;
  if (memory.empty()) return Kind::kDevice;
  for (const Piece& piece : memory) {
    if (page < reinterpret_cast<Address>(piece.end) &&
        page + kPage > reinterpret_cast<Address>(piece.begin)) {
      return Kind::kDevice;
    }
  }
  return Kind::kElsewhere;
}

Page* page_of(Address page) {
  auto& slot = recent[page / kPage % recent.size()];
  if (slot.first == page && slot.second->launch == launch_number) return slot.second;
  std::unique_ptr<Page>& found = pages[page];
  if (!found) found = std::make_unique<Page>();
  if (found->launch != launch_number) {
    found->launch = launch_number;
    found->kind = kind_of(page);
    touched_pages.emplace_back(page, found.get());
    for (Granule& granule : found->granules) granule.read = granule.written = 0;
  }
  slot = {page, found.get()};
  return found.get();
}

bool ordered(const Record& before, std::uint32_t block) {
  if (before.block != block) return false;
  return before.thread == current_thread || before.block_epoch != block_epochs[current_thread] ||
         (before.thread / 32 == current_thread / 32 &&
          before.warp_epoch != warp_epochs[current_thread]);
}

void note(Page& page, Address at, std::uint8_t bytes, bool write, bool atomic) {
  Granule& granule = page.granules[at % kPage / kGranule];
  (write ? granule.written : granule.read) |= bytes;
  const std::uint32_t oldest = page.kind == Kind::kShared ? block_number : first_block;
  Record* mine = nullptr;
  Record* unused = nullptr;
  Record* passed = nullptr;  // ordered before this access: may be forgotten
  for (Record& record : granule.records) {
    if (record.block < oldest) {
      if (!unused) unused = &record;
      continue;
    }
    const bool is_ordered = ordered(record, block_number);
    if ((record.bytes & bytes) != 0 && (record.write || write) && !is_ordered &&
        !(record.atomic && atomic)) {
      fault(thread_name(block_number, current_thread) + (write ? " writes" : " reads") + " what " +
            thread_name(record.block, record.thread) +
            (record.write ? " has written" : " has read") + ", and nothing orders them" +
            (page.kind == Kind::kShared ? " (shared memory)" : ""));
    }
    // What was written before a barrier stays written when it is read again.
    const bool is_mine = record.block == block_number && record.thread == current_thread &&
                         record.bytes == bytes && record.atomic == atomic;
    const bool is_now = record.block_epoch == block_epochs[current_thread] &&
                        record.warp_epoch == warp_epochs[current_thread];
    if (is_mine && (write || !record.write || is_now)) {
      mine = &record;
    } else if (is_ordered && (!record.write || write)) {
      passed = &record;
    }
  }
  Record* to = mine ? mine : unused ? unused : passed;
  // Others fill all places, and what comes is compared with them; a write is never left out.
  if (!to && write) to = &granule.records[current_thread % granule.records.size()];
  if (!to) return;
  const bool wrote = mine && mine->write && mine->block_epoch == block_epochs[current_thread] &&
                     mine->warp_epoch == warp_epochs[current_thread];
  *to = {block_number,
         static_cast<std::uint16_t>(current_thread),
         block_epochs[current_thread],
         warp_epochs[current_thread],
         bytes,
         write || wrote,
         atomic};
}

bool is_written_operand(Address begin, Address end) {
  return std::any_of(allowed.begin(), allowed.end(), [&](const Touched& operand) {
    return operand.write && reinterpret_cast<Address>(operand.begin) <= begin &&
           end <= reinterpret_cast<Address>(operand.end);
  });
}

[[gnu::noinline]] void watch(const void* data, std::size_t bytes, bool write, bool atomic) {
  const auto begin = reinterpret_cast<Address>(data), end = begin + bytes;
  if (begin >= stacks_begin && begin < stacks_end) return;
  if (begin - reinterpret_cast<Address>(&places) < sizeof places) return;
  for (Address at = begin; at < end;) {
    const Address granule_end = (at / kGranule + 1) * kGranule;
    const Address part_end = std::min(end, granule_end);
    Page* page = page_of(at / kPage * kPage);
    // Tests may take other memory for the device's.
    if (page->kind == Kind::kElsewhere && write && !allowed.empty() &&
        !is_written_operand(begin, end)) {
      fault(thread_name(block_number, current_thread) +
            " writes to memory that is neither the device's nor an operand");
    }
    if (page->kind == Kind::kIgnored || page->kind == Kind::kElsewhere) return;
    const Address in_shared = at - reinterpret_cast<Address>(shared_memory);
    if (in_shared < kSharedBytes && in_shared >= shared_bytes) {
      fault(thread_name(block_number, current_thread) + (write ? " writes" : " reads") +
            " shared memory beyond the launch's " + std::to_string(shared_bytes) + " bytes");
    }
    // Without operands only watching shows what is touched.
    if (++num_accesses == kMostAccesses && !operands_of_launch.empty() && !watch_all()) {
      watching = false;
      return;
    }
    const auto mask = static_cast<std::uint8_t>(((1u << (part_end - at)) - 1u) << (at % kGranule));
    note(*page, at, mask, write, atomic);
    at = part_end;
  }
}

inline void access(const void* data, std::size_t bytes, bool write, bool atomic = false) {
  if (watching) watch(data, bytes, write, atomic);
}

// Bytes that `read` or `written` has a bit for, as pieces.
void collect(Address page, const Page& of, bool write, std::vector<Touched>& touched) {
  for (std::size_t g = 0; g < of.granules.size(); ++g) {
    const Granule& granule = of.granules[g];
    const std::uint8_t mask = write ? granule.written : granule.read;
    for (std::size_t i = 0; mask != 0 && i < kGranule; ++i) {
      if ((mask >> i & 1) == 0) continue;
      const char* byte = reinterpret_cast<const char*>(page + g * kGranule + i);
      if (!touched.empty() && touched.back().end == byte && touched.back().write == write) {
        ++touched.back().end;
      } else {
        touched.push_back({byte, byte + 1, write});
      }
    }
  }
}

// A piece must lie in operands, which may be adjacent.
void compare_with_operands(const char* name, const std::vector<Touched>& operands,
                           const Touched& piece) {
  const char* at = piece.begin;
  for (bool found = true; found && at < piece.end;) {
    found = false;
    for (const Touched& operand : operands) {
      if (operand.begin > at || operand.end <= at || (piece.write && !operand.write)) continue;
      at = operand.end;
      found = true;
    }
  }
  if (at >= piece.end) return;
  fault_of(name, std::string(piece.write ? "writes " : "reads ") + std::to_string(piece.end - at) +
                     " bytes that no " + (piece.write ? "writable " : "") + "operand has");
}

// By form, whether each operand was written.
std::map<std::vector<std::uint64_t>, std::vector<bool>> watched_forms;

}  // namespace

bool begin_watch(Launch& launch, std::vector<Piece> device) {
  kernel_name = launch.kernel;
  shared_bytes = launch.shared_bytes;
  ++launch_number;
  first_block = block_number + 1;
  block_indices.clear();
  std::vector<std::uint64_t>& form = launch.form;
  for (const Touched& operand : launch.operands) {
    form.push_back(static_cast<std::uint64_t>(operand.end - operand.begin) << 1 | operand.write);
  }
  if (const auto found = watched_forms.find(form);
      found != watched_forms.end() && !launch.operands.empty() && !watch_all()) {
    for (std::size_t i = 0; i < launch.operands.size(); ++i) {
      launch.operands[i].write = found->second[i];
    }
    return false;
  }
  memory = std::move(device);
  if (memory.empty()) {
    allowed.clear();  // what a launch carries itself can't be told from it
  } else {
    allowed = launch.operands;
  }
  form_of_launch = form;
  operands_of_launch = launch.operands;
  num_accesses = 0;
  touched_pages.clear();
  watching = true;
  return true;
}

std::vector<Touched> end_watch() {
  const bool whole = watching;
  watching = false;
  std::sort(touched_pages.begin(), touched_pages.end());
  std::vector<Touched> all;
  for (const bool write : {false, true}) {
    for (const auto& [address, page] : touched_pages) {
      if (page->kind == Kind::kDevice) collect(address, *page, write, all);
    }
  }
  std::vector<bool>& written = watched_forms[form_of_launch];
  written.clear();
  for (const Touched& operand : operands_of_launch) {
    const auto is_in = [&](const Touched& piece) {
      return piece.write && piece.begin < operand.end && operand.begin < piece.end;
    };
    written.push_back(operand.write && (!whole || std::ranges::any_of(all, is_in)));
  }
  if (!allowed.empty()) {
    for (const Touched& piece : all) compare_with_operands(kernel_name, allowed, piece);
  }
  return whole || operands_of_launch.empty() ? all : operands_of_launch;
}

void expect_operands(const char* name, const std::vector<Touched>& touched) {
  const std::vector<Touched>& operands = operands_of_call();
  if (operands.empty()) return;
  for (const Touched& piece : touched) {
    if (piece.begin < piece.end) compare_with_operands(name, operands, piece);
  }
}

void ignore_stacks(const void* begin, std::size_t bytes) {
  stacks_begin = reinterpret_cast<Address>(begin);
  stacks_end = stacks_begin + bytes;
}

void watch_block(std::size_t index) {
  ++block_number;
  block_indices.push_back(index);
  block_epochs.fill(0);
  warp_epochs.fill(0);
}
void watch_thread(std::size_t thread) {
  current_thread = thread;
}
void thread_met_block() {
  ++block_epochs[current_thread];
}
void thread_met_warp() {
  ++warp_epochs[current_thread];
}
void watch_atomic(void* to, std::size_t bytes) {
  access(to, bytes, true, true);
}

const std::vector<Touched>& operands_of_call() {
  static const std::vector<Touched> none;
  return calls.empty() ? none : calls.back();
}

std::vector<std::string> faults() {
  const std::lock_guard lock(faults_mutex);
  return all_faults;
}
void forget_faults() {
  const std::lock_guard lock(faults_mutex);
  all_faults.clear();
}

}  // namespace emulated

// What gcc calls (libsanitizer's tsan_interface.h has the list). Calls of memcpy and memmove aren't among it: kernels have
// none.
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
#define SHERD_ACCESSES(BYTES)                   \
  void __tsan_read##BYTES(void* p) {            \
    emulated::access(p, BYTES, false);          \
  }                                             \
  void __tsan_write##BYTES(void* p) {           \
    emulated::access(p, BYTES, true);           \
  }                                             \
  void __tsan_unaligned_read##BYTES(void* p) {  \
    emulated::access(p, BYTES, false);          \
  }                                             \
  void __tsan_unaligned_write##BYTES(void* p) { \
    emulated::access(p, BYTES, true);           \
  }
SHERD_ACCESSES(1)
SHERD_ACCESSES(2)
SHERD_ACCESSES(4)
SHERD_ACCESSES(8)
SHERD_ACCESSES(16)
void __tsan_read_range(void* p, unsigned long bytes) {
  emulated::access(p, bytes, false);
}
void __tsan_write_range(void* p, unsigned long bytes) {
  emulated::access(p, bytes, true);
}
}
