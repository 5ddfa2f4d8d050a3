#include "engine/train/units/ring.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "sharding/mesh/process_groups.h"
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
    links_.push_back(rank.groups->pair(rank.rank, peer, fmt::format("ring link {}", link)));
    (sends ? to_next_ : from_previous_) = links_.back().get();
  };
  // In ascending order on every rank, so that nobody waits for a link that another uses.
  const int before = (place + degree - 1) % degree;
  join(std::min(place, before));
  join(std::max(place, before));
  out_ = rank.make_stream(StreamPurpose::kReduce, "ring.out");
  in_ = rank.make_stream(StreamPurpose::kReduce, "ring.in");
  if (!to_next_->calls_meet()) return;
  own_thread_ = make_cpu_compute_stream({});
  make_caller(sends_, "ring.out", rank.rank);
  make_caller(receives_, "ring.in", rank.rank);
}

Ring::~Ring() {
  sends_.thread.reset();  // what was called uses the others
  receives_.thread.reset();
  out_.reset();
  in_.reset();
  for (std::unique_ptr<sharding::Communicator>& link : links_) link.reset();
}

void Ring::make_caller(Caller& caller, const char* name, int rank) {
  StreamOptions thread;
  thread.purpose = StreamPurpose::kReduce;
  thread.name = name;
  thread.rank = rank;
  caller.thread = make_cpu_worker_stream(thread);
  caller.called = make_cpu_event();
}

void Ring::call(Caller& caller, const std::function<void()>& calls) {
  if (!caller.thread) return calls();
  caller.thread->run("call", calls);
  caller.thread->record(*caller.called);
}

// An event says something only when the call that records it has been made.
void Ring::wait_for_calls(const Caller& caller) {
  if (caller.thread) own_thread_->wait(*caller.called);
}

void Ring::pass_on(const char* what, const Tensor& from, const Tensor& to) {
  if (spare_.empty()) {
    spare_.push_back(
        sharding::counted(compute_.make_event(), sharding::wait_kind(sharding::kContextAxis)));
  }
  under_way_.push_back(std::move(spare_.front()));
  spare_.pop_front();
  wait_for_calls(receives_);  // of what came before: their streams are used by one thread at a time
  wait_for_calls(sends_);
  compute_.record(*ready_);
  in_->wait(*ready_);
  in_->wait(*sent_);  // of earlier calls
  out_->wait(*ready_);
  // Links in ascending order, everywhere: so no order in which a library begins calls makes a
  // circle.
  const bool sends_first = to_next_ == links_.front().get();
  if (sends_first) send(what, from);
  call(receives_, [this, what, to, arrived = under_way_.back().get()] {
    from_previous_->broadcast(*in_, what, to, root_of(*from_previous_, false));
    in_->record(*arrived);
  });
  if (!sends_first) send(what, from);
}

void Ring::send(const char* what, const Tensor& from) {
  call(sends_, [this, what, from] {
    to_next_->broadcast(*out_, what, from, root_of(*to_next_, true));
    out_->record(*sent_);
  });
}

void Ring::await_passed() {
  SHERD_CHECK(!under_way_.empty(), "nothing is passed on");
  wait_for_calls(receives_);
  compute_.wait(*under_way_.front());
  spare_.push_back(std::move(under_way_.front()));
  under_way_.pop_front();
}

void Ring::await_sent() {
  wait_for_calls(sends_);
  compute_.wait(*sent_);
}

std::chrono::nanoseconds Ring::cpu_time() const {
  std::chrono::nanoseconds time = out_->cpu_time() + in_->cpu_time();
  for (const Caller* caller : {&sends_, &receives_}) {
    if (caller->thread) time += caller->thread->cpu_time();
  }
  return time;
}

}  // namespace sherd::engine
