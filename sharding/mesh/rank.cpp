#include "sharding/mesh/rank.h"

#include "core/disk_home.h"
#include "core/error.h"
#include "core/link_bytes.h"
#include "sharding/mesh/process_groups.h"

namespace sherd::sharding {
namespace {

std::string reason_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "unknown error";
  }
}

void drain(Stream& stream) {
  try {
    stream.synchronize();
  } catch (...) {  // the error that we are about to rethrow, or a consequence of it
  }
}

}  // namespace

Rank::Rank() = default;
Rank::Rank(Rank&&) noexcept = default;
Rank::~Rank() = default;

Buffer Rank::acquire(const BufferSpec& spec) const {
  if (spec.home == Home::kDisk) {
    SHERD_CHECK(disk, "{} is on disk, and this rank has none", spec.name);
    return disk->acquire(spec);
  }
  return (spec.home == Home::kHost && host_memory ? *host_memory : *memory).acquire(spec);
}

std::optional<LinkBytes> Rank::sent() const {
  return groups->sent();
}

std::chrono::nanoseconds Rank::waited_for_disk() const {
  return disk ? disk->waited() : std::chrono::nanoseconds(0);
}

void Rank::each_part(const Tensor& tensor, bool writes,
                     const std::function<void(const Tensor& part, std::int64_t first)>& use) const {
  if (!disk || !disk->has(tensor.data)) return use(tensor, 0);
  const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
  disk->each_part(tensor.data, tensor.bytes(), writes,
                  [&](void* memory, std::int64_t begin, std::int64_t bytes) {
                    use({memory, tensor.dtype, bytes / size}, begin / size);
                  });
}

void Rank::guard(const std::function<void()>& work) const {
  try {
    work();
    compute().synchronize();
    gather().synchronize();
    reduce().synchronize();
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    if (report_failure) report_failure(error);
    const std::string reason = fmt::format("rank {} stopped: {}", rank, reason_of(error));
    if (groups) groups->abort(reason);
    drain(compute());
    drain(gather());
    drain(reduce());
    throw;
  }
}

}  // namespace sherd::sharding
