#include "sharding/mesh/rank.h"

#include "core/error.h"
#include "core/link_bytes.h"
#include "core/offload_home.h"
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
    SHERD_CHECK(offload_home, "{} is kept elsewhere, and this rank has no such place", spec.name);
    return offload_home->acquire(spec);
  }
  return (spec.home == Home::kHost && host_memory ? *host_memory : *memory).acquire(spec);
}

std::optional<LinkBytes> Rank::sent() const {
  return groups->sent();
}

std::chrono::nanoseconds Rank::waited_for_state() const {
  return offload_home ? offload_home->waited() : std::chrono::nanoseconds(0);
}

void Rank::each_part(Stream& stream, const Tensor& tensor, bool writes,
                     const std::function<void(const Tensor& part, std::int64_t first)>& use) const {
  if (!offload_home || !offload_home->has(tensor.data)) return use(tensor, 0);
  const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
  offload_home->each_part(stream, tensor.data, tensor.bytes(), writes,
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
    if (offload_home) offload_home->settle();
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
