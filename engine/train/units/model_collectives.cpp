#include "engine/train/units/model_collectives.h"

#include "core/cuda_device.h"
#include "core/trace.h"
#include "kernels/pointwise.h"
#include "sharding/mesh/process_groups.h"
#include "sharding/mesh/waits.h"

namespace sherd::engine {
namespace {

// The ranks that hold the same key/value heads, which are neighbours; null where none do.
std::unique_ptr<sharding::Communicator> holders_of_copies(const model::TensorPart& part,
                                                          const sharding::Rank& rank) {
  if (part.kv_copies == 1) return nullptr;
  const std::vector<int> all = rank.mesh.group(rank.rank, {std::string(sharding::kTensorAxis)});
  const auto first = all.begin() + part.rank - part.kv_copy;
  return rank.groups->among({first, first + part.kv_copies}, "copies of key/value heads",
                            sharding::Purpose::kTensor);
}

// What an exchange calls, and among whom.
struct Call {
  sharding::Collective collective;
  sharding::Callers callers;
};
Call call_of(model::Exchange::Kind kind, const model::ModelShape& shape) {
  using Kind = model::Exchange::Kind;
  using sharding::Collective;
  const auto tensor = [](int count) {
    return sharding::Callers{.count = count, .axes = {std::string(sharding::kTensorAxis)}};
  };
  const sharding::Callers context{.count = shape.context.degree,
                                  .axes = {std::string(sharding::kContextAxis)}};
  const sharding::Callers expert{.count = shape.expert.degree,
                                 .axes = {std::string(sharding::kExpertAxis)}};
  switch (kind) {
    case Kind::kSum:
      return {Collective::kAllReduce, tensor(shape.part.degree)};
    case Kind::kSumCopies:
      return {Collective::kAllReduce, tensor(shape.part.kv_copies)};
    case Kind::kReduceScatter:
      return {Collective::kReduceScatter, tensor(shape.part.degree)};
    case Kind::kGather:
      return {Collective::kAllGather, tensor(shape.part.degree)};
    case Kind::kAllToAll:
      return {Collective::kAllToAll, context};
    case Kind::kGatherPositions:
      return {Collective::kAllGather, context};
    case Kind::kReduceScatterPositions:
      return {Collective::kReduceScatter, context};
    case Kind::kGatherCounts:
      return {Collective::kAllGather, expert};
    case Kind::kExchangeRows:
      return {Collective::kAllToAllV, expert};
    case Kind::kPassOn:
      break;  // add_passed
  }
  SHERD_CHECK(false, "unknown exchange");
  __builtin_unreachable();
}

// A message to the next rank, and one from the rank before.
void add_passed(const model::Exchange& one, const RingNeighbours& neighbours,
                sharding::Traffic& traffic) {
  constexpr auto kMessage = sharding::Collective::kBroadcast;
  traffic.add(one.what, kMessage, one.dtype, one.numel, {.count = 2, .peer = neighbours.next},
              one.calls);
  traffic.add_silent(one.what, kMessage, one.dtype, {.count = 2, .peer = neighbours.previous},
                     one.calls);
}

class Stopwatch {
 public:
  explicit Stopwatch(std::chrono::nanoseconds& total) : total_(total) {}
  ~Stopwatch() { total_ += Clock::now() - begin_; }

 private:
  std::chrono::nanoseconds& total_;
  Clock::time_point begin_ = Clock::now();
};

// Where the last elements of a sum wait, for tensors that the ranks can't share evenly.
BufferSpec tensor_sum_tail(const model::TensorPart& part) {
  return {"tensor.sum_tail", Category::kCommunication, DType::kF32, part.degree};
}

}  // namespace

std::vector<BufferSpec> ModelCollectives::buffers(const model::ModelShape& shape) {
  if (!shape.part.is_cut()) return {};
  return {tensor_sum_tail(shape.part)};
}

sharding::Traffic exchange_traffic(const model::ModelShape& shape,
                                   const std::vector<model::Exchange>& exchanges,
                                   const RingNeighbours& neighbours) {
  sharding::Traffic traffic;
  for (const model::Exchange& one : exchanges) {
    if (one.kind == model::Exchange::Kind::kPassOn) {
      add_passed(one, neighbours, traffic);
      continue;
    }
    const Call call = call_of(one.kind, shape);
    if (one.numel == 0) {  // further rounds, whose rows are counted with the first one
      traffic.add_silent(one.what, call.collective, one.dtype, call.callers, one.calls);
      continue;
    }
    // An all-reduce takes as many elements for each rank: ModelCollectives::sum_over.
    const bool sums = call.collective == sharding::Collective::kAllReduce;
    const std::int64_t left = sums ? one.numel % call.callers.count : 0;
    const auto add = [&](std::int64_t numel) {
      if (numel == 0) return;
      traffic.add(one.what, call.collective, one.dtype, numel, call.callers, one.calls);
    };
    add(one.numel - left);
    add(left > 0 ? call.callers.count : 0);
  }
  return traffic;
}

ModelCollectives::ModelCollectives(const model::TensorPart& part, Allocator& memory,
                                   Stream& compute, sharding::Communicator& ranks,
                                   sharding::Communicator* copies)
    : compute_(compute),
      trees_(part.has_canonical_sums()),
      ranks_(&ranks),
      copies_(copies),
      tail_(memory.acquire(tensor_sum_tail(part))) {
  SHERD_CHECK(ranks.rank() == part.rank && ranks.world_size() == part.degree,
              "tensor rank {} of {} among ranks, {} of {} by its part", ranks.rank(),
              ranks.world_size(), part.rank, part.degree);
  SHERD_CHECK(copies == nullptr
                  ? part.kv_copies == 1
                  : copies->rank() == part.kv_copy && copies->world_size() == part.kv_copies,
              "a group of key/value heads' copies that isn't of {} ranks", part.kv_copies);
}

ModelCollectives::ModelCollectives(const model::ModelShape& shape, const sharding::Rank& rank)
    : compute_(rank.compute()),
      trees_(shape.part.has_canonical_sums()),
      ranks_(nullptr),
      copies_(nullptr) {
  const auto along = [&](std::string_view axis) {
    return &rank.groups->get({std::string(axis)}, sharding::Purpose::kTensor);
  };
  if (shape.part.is_cut()) {
    ranks_ = along(sharding::kTensorAxis);
    own_copies_ = holders_of_copies(shape.part, rank);
    copies_ = own_copies_.get();
    tail_ = rank.acquire(tensor_sum_tail(shape.part));
  }
  if (shape.context.is_cut()) context_ = along(sharding::kContextAxis);
  if (shape.expert.is_cut()) experts_ = std::make_unique<RowExchange>(rank);
  if (shape.context.passes_keys()) ring_ = std::make_unique<Ring>(rank);
}

std::chrono::nanoseconds ModelCollectives::time_spent(std::string_view axis) const {
  const auto at = on_axis_.find(axis);
  return at == on_axis_.end() ? std::chrono::nanoseconds(0) : at->second;
}

// After the calls, the next kernel needs what they bring: all of their time is exposed.
void ModelCollectives::call(std::string_view axis, const std::function<void()>& calls) {
  if (compute_.device() == DeviceKind::kCuda) {
    return cuda_stream(compute_).communicate(sharding::wait_kind(axis), calls);
  }
  const Stopwatch watch(on_axis_[std::string(axis)]);
  calls();
}

void ModelCollectives::sum(const char* what, const Tensor& x) {
  if (ranks_ != nullptr) sum_over(*ranks_, what, x);
}

void ModelCollectives::sum_copies(const char* what, const Tensor& x) {
  SHERD_CHECK(copies_ != nullptr, "{}: no copies of key/value heads", what);
  sum_over(*copies_, what, x);
}

void ModelCollectives::reduce_scatter(const char* what, const Tensor& x, const Tensor& out) {
  SHERD_CHECK(ranks_ != nullptr, "{} of a model whose matrices are whole", what);
  call(sharding::kTensorAxis, [&] { scatter_over(*ranks_, what, x, out); });
}

void ModelCollectives::gather(const char* what, const Tensor& x) {
  if (ranks_ == nullptr)
    return;  // a model whose matrices are whole takes canonical sums the same way
  call(sharding::kTensorAxis, [&] { ranks_->all_gather(compute_, what, x); });
}

void ModelCollectives::all_to_all(const char* what, const Tensor& from, const Tensor& to) {
  SHERD_CHECK(context_ != nullptr, "{} of a model whose sequences are whole", what);
  call(sharding::kContextAxis, [&] { context_->all_to_all(compute_, what, from, to); });
}

void ModelCollectives::gather_positions(const char* what, const Tensor& x) {
  SHERD_CHECK(context_ != nullptr, "{} of a model whose sequences are whole", what);
  call(sharding::kContextAxis, [&] { context_->all_gather(compute_, what, x); });
}

void ModelCollectives::reduce_scatter_positions(const char* what, const Tensor& x,
                                                const Tensor& out) {
  SHERD_CHECK(context_ != nullptr, "{} of a model whose sequences are whole", what);
  call(sharding::kContextAxis, [&] { scatter_over(*context_, what, x, out); });
}

void ModelCollectives::gather_counts(const char* what, const Tensor& x) {
  SHERD_CHECK(experts_ != nullptr, "{} of a model whose experts are all here", what);
  experts_->gather(what, x);
}

void ModelCollectives::exchange_rows(const char* what, const Tensor& from,
                                     const std::vector<ElementRange>& sends, const Tensor& to,
                                     const std::vector<ElementRange>& receives) {
  SHERD_CHECK(experts_ != nullptr, "{} of a model whose experts are all here", what);
  experts_->exchange(what, from, sends, to, receives);
}

void ModelCollectives::await_rows() {
  experts_->await();
}

void ModelCollectives::pass_on(const char* what, const Tensor& from, const Tensor& to) {
  SHERD_CHECK(ring_ != nullptr, "{} of a model without a ring", what);
  ring_->pass_on(what, from, to);
}

void ModelCollectives::await_passed() {
  ring_->await_passed();
}

void ModelCollectives::await_sent() {
  ring_->await_sent();
}

std::chrono::nanoseconds ModelCollectives::cpu_time() const {
  std::chrono::nanoseconds time{0};
  if (ring_) time += ring_->cpu_time();
  if (experts_) time += experts_->cpu_time();
  return time;
}

void ModelCollectives::scatter_over(sharding::Communicator& communicator, const char* what,
                                    const Tensor& x, const Tensor& out) {
  communicator.reduce_scatter(compute_, what, x, out, {.tree = tree_of(communicator)});
}

void ModelCollectives::broadcast_position(const char* what, const Tensor& x, int owner) {
  SHERD_CHECK(context_ != nullptr, "{} of a model whose sequences are whole", what);
  call(sharding::kContextAxis, [&] { context_->broadcast(compute_, what, x, owner); });
}

void ModelCollectives::sum_over(sharding::Communicator& communicator, const char* what,
                                const Tensor& x) {
  call(sharding::kTensorAxis, [&] { add_up(communicator, what, x); });
}

// An all-reduce takes as many elements for each rank. Those that are left over, fewer than there
// are ranks, are added separately.
void ModelCollectives::add_up(sharding::Communicator& communicator, const char* what,
                              const Tensor& x) {
  const std::int64_t left = x.numel % communicator.world_size(), even = x.numel - left;
  if (even > 0) communicator.all_reduce(compute_, what, x.part(0, even), tree_of(communicator));
  if (left == 0) return;
  const Tensor tail{tail_.tensor().data, x.dtype, communicator.world_size()};
  kernels::fill_zero(compute_, tail);
  kernels::cast(compute_, x.part(even, left), tail.part(0, left));
  communicator.all_reduce(compute_, what, tail, tree_of(communicator));
  kernels::cast(compute_, tail.part(0, left), x.part(even, left));
}

}  // namespace sherd::engine
