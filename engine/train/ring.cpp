#include "engine/train/ring.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "sharding/mesh/waits.h"

namespace sherd::engine {
namespace {

const sharding::AxisSet& context_axis() {
  static const sharding::AxisSet axis{std::string(sharding::kContextAxis)};
  return axis;
}

// Of a communicator of two, whose ranks are in ascending order.
int root_of(const sharding::Communicator& link, bool sends) {
  return sends ? link.rank() : 1 - link.rank();
}

}  // namespace

RingNeighbours ring_neighbours(const sharding::Mesh& mesh, int rank) {
  const std::vector<int> group = mesh.group(rank, context_axis());
  const auto at = std::ranges::find(group, rank) - group.begin();
  const auto size = std::ssize(group);
  return {group[static_cast<std::size_t>((at + 1) % size)],
          group[static_cast<std::size_t>((at + size - 1) % size)]};
}

Ring::Ring(const sharding::Rank& rank)
    : compute_(rank.compute()),
      neighbours_(ring_neighbours(rank.mesh, rank.rank)),
      ready_(rank.make_event()),
      sent_(sharding::counted(rank.make_event(), sharding::wait_kind(sharding::kContextAxis))) {
  const int place = rank.mesh.coordinate(rank.rank, sharding::kContextAxis);
  const int degree = rank.mesh.degree(sharding::kContextAxis);
  const auto join = [&](int link) {
    const bool sends = link == place;
    const int peer = sends ? neighbours_.next : neighbours_.previous;
    (sends ? to_next_ : from_previous_) =
        rank.groups->pair(rank.rank, peer, fmt::format("ring link {}", link));
  };
  // In ascending order on every rank, so that nobody waits for a link behind another.
  const int before = (place + degree - 1) % degree;
  join(std::min(place, before));
  join(std::max(place, before));
  CHECK(!to_next_->calls_meet(), "a ring whose calls meet");
  out_ = rank.make_stream(StreamPurpose::kReduce, "ring.out");
  in_ = rank.make_stream(StreamPurpose::kReduce, "ring.in");
}

void Ring::pass_on(const char* what, const Tensor& from, const Tensor& to) {
  if (spare_.empty()) {
    spare_.push_back(
        sharding::counted(compute_.make_event(), sharding::wait_kind(sharding::kContextAxis)));
  }
  under_way_.push_back(std::move(spare_.front()));
  spare_.pop_front();
  compute_.record(*ready_);
  in_->wait(*ready_);
  in_->wait(*sent_);  // of earlier calls
  from_previous_->broadcast(*in_, what, to, root_of(*from_previous_, false));
  in_->record(*under_way_.back());
  out_->wait(*ready_);
  to_next_->broadcast(*out_, what, from, root_of(*to_next_, true));
  out_->record(*sent_);
}

void Ring::await_passed() {
  CHECK(!under_way_.empty(), "nothing is passed on");
  compute_.wait(*under_way_.front());
  spare_.push_back(std::move(under_way_.front()));
  under_way_.pop_front();
}

void Ring::await_sent() {
  compute_.wait(*sent_);
}

std::chrono::nanoseconds Ring::cpu_time() const {
  return out_->cpu_time() + in_->cpu_time();
}

}  // namespace sherd::engine
