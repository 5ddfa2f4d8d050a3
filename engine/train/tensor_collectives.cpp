#include "engine/train/tensor_collectives.h"

#include "kernels/pointwise.h"

namespace sherd::engine {

BufferSpec tensor_sum_tail(const model::TensorPart& part) {
  return {"tensor.sum_tail", Category::kCommunication, DType::kF32, part.degree};
}

sharding::Traffic tensor_traffic(const model::TensorPart& part,
                                 const std::vector<model::Exchange>& exchanges) {
  using Kind = model::Exchange::Kind;
  sharding::Traffic traffic;
  for (const model::Exchange& one : exchanges) {
    if (one.kind == Kind::kGather) {
      traffic.add(one.what, sharding::Collective::kAllGather, one.dtype, one.numel, part.degree,
                  one.calls);
      continue;
    }
    const int ranks = one.kind == Kind::kSum ? part.degree : part.kv_copies;
    const std::int64_t left = one.numel % ranks;
    const auto add = [&](std::int64_t numel) {
      if (numel == 0) return;
      traffic.add(one.what, sharding::Collective::kAllReduce, one.dtype, numel, ranks, one.calls);
    };
    add(one.numel - left);
    add(left > 0 ? ranks : 0);
  }
  return traffic;
}

TensorCollectives::TensorCollectives(const model::TensorPart& part, Allocator& memory,
                                     Stream& compute, sharding::Communicator& ranks,
                                     sharding::Communicator* copies)
    : compute_(compute),
      ranks_(ranks),
      copies_(copies),
      tail_(memory.acquire(tensor_sum_tail(part))) {
  CHECK(ranks.rank() == part.rank && ranks.world_size() == part.degree,
        "tensor rank {} of {} among ranks, {} of {} by its part", ranks.rank(), ranks.world_size(),
        part.rank, part.degree);
  CHECK(copies == nullptr
            ? part.kv_copies == 1
            : copies->rank() == part.kv_copy && copies->world_size() == part.kv_copies,
        "a group of key/value heads' copies that isn't of {} ranks", part.kv_copies);
}

void TensorCollectives::sum(const char* what, const Tensor& x) {
  sum_over(ranks_, what, x);
}

void TensorCollectives::sum_copies(const char* what, const Tensor& x) {
  CHECK(copies_ != nullptr, "{}: no copies of key/value heads", what);
  sum_over(*copies_, what, x);
}

void TensorCollectives::gather(const char* what, const Tensor& x) {
  ranks_.all_gather(compute_, what, x);
}

// An all-reduce takes as many elements for each rank. Those that are left over, fewer than there are
// ranks, are added up beside.
void TensorCollectives::sum_over(sharding::Communicator& communicator, const char* what,
                                 const Tensor& x) {
  const std::int64_t left = x.numel % communicator.world_size(), even = x.numel - left;
  if (even > 0) communicator.all_reduce(compute_, what, x.part(0, even));
  if (left == 0) return;
  const Tensor tail{tail_.tensor().data, x.dtype, communicator.world_size()};
  kernels::fill_zero(compute_, tail);
  kernels::cast(compute_, x.part(even, left), tail.part(0, left));
  communicator.all_reduce(compute_, what, tail);
  kernels::cast(compute_, tail.part(0, left), x.part(even, left));
}

}  // namespace sherd::engine
