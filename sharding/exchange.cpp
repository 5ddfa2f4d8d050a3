#include "sharding/exchange.h"

#include <algorithm>

#include "core/cuda_device.h"

namespace sherd::sharding {

BufferSpec exchange_buffer(const std::string& name, int count, int world_size) {
  return {"exchange." + name, Category::kCommunication, DType::kF64,
          static_cast<std::int64_t>(count) * world_size};
}

Traffic exchange_traffic(const std::string& name, int count, int world_size) {
  Traffic traffic(world_size);
  traffic.add(name, Collective::kAllGather, DType::kF64,
              static_cast<std::int64_t>(count) * world_size);
  return traffic;
}

Exchange::Exchange(const Rank& rank, const std::string& name, int count)
    : rank_(&rank),
      rows_(rank.memory->acquire(exchange_buffer(name, count, rank.world_size))),
      done_(rank.make_event()) {}

std::vector<std::vector<double>> Exchange::all(const std::string& what,
                                               std::span<const double> mine) {
  const Tensor rows = rows_.tensor();
  const auto count = rows.numel / rank_->world_size;
  CHECK(static_cast<std::int64_t>(mine.size()) == count, "exchange of {} numbers, made for {}",
        mine.size(), count);
  const double* values = rank_->compute().device() == DeviceKind::kCuda
                             ? gather_on_device(what, mine)
                             : gather_on_host(what, mine);
  std::vector<std::vector<double>> table;
  for (int r = 0; r < rank_->world_size; ++r) {
    table.emplace_back(values + r * count, values + (r + 1) * count);
  }
  return table;
}

const double* Exchange::gather_on_host(const std::string& what, std::span<const double> mine) {
  const Tensor rows = rows_.tensor();
  auto* values = rows.as<double>();
  std::copy(mine.begin(), mine.end(), values + rank_->rank * std::ssize(mine));
  rank_->reduce_communicator->all_gather(rank_->reduce(), what, rows);
  rank_->reduce().record(*done_);
  rank_->compute().wait(*done_);
  return values;
}

// The numbers go through page-locked memory, and the caller waits: it needs them.
const double* Exchange::gather_on_device(const std::string& what, std::span<const double> mine) {
  const Tensor rows = rows_.tensor();
  if (!staging_) staging_ = pinned_memory(rows.bytes());
  auto* values = static_cast<double*>(staging_.get());
  std::copy(mine.begin(), mine.end(), values);
  CudaStream& stream = cuda_stream(rank_->reduce());
  const std::int64_t count = std::ssize(mine);
  copy_bytes(stream, values, rows.part(rank_->rank * count, count).data, count * 8);
  rank_->reduce_communicator->all_gather(stream, what, rows);
  copy_bytes(stream, rows.data, values, rows.bytes());
  stream.synchronize();
  return values;
}

}  // namespace sherd::sharding
