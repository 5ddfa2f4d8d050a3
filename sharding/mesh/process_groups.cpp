#include "sharding/mesh/process_groups.h"

#include <algorithm>

#include "core/error.h"
#include "sharding/comm/flight_recorder.h"
#include "sharding/comm/rendezvous.h"

namespace sherd::sharding {

std::string_view name_of(Purpose purpose) {
  return purpose == Purpose::kGather ? "gather" : "reduce";
}

// Named by its axes of more than one rank and by its first rank, so that every member calls it the
// same and no other group does.
Group group_of(const Mesh& mesh, int rank, const AxisSet& axes, Purpose purpose) {
  Group group;
  group.ranks = mesh.group(rank, axes);
  group.index = mesh.index_in_group(rank, axes);
  std::string names;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.degree == 1 || !axes.contains(axis.name)) continue;
    names += fmt::format("{}{}", names.empty() ? "" : " x ", axis.name);
  }
  group.name = fmt::format("{}, {}, from rank {}", name_of(purpose),
                           names.empty() ? "alone" : names, group.ranks.front());
  return group;
}

BufferSpec staging_buffer(std::int64_t bytes) {
  return {"communicator.staging", Category::kCommunication, DType::kU8, bytes, kAlways};
}

ProcessGroups::ProcessGroups(const Mesh& mesh, int rank, std::shared_ptr<Rendezvous> rendezvous)
    : mesh_(mesh),
      rank_(rank),
      rendezvous_(std::move(rendezvous)),
      recorder_(std::make_unique<FlightRecorder>()) {}

Communicator& ProcessGroups::get(const AxisSet& axes, Purpose purpose) {
  Group group = group_of(mesh_, rank_, axes, purpose);
  if (purpose == Purpose::kReduce) group.staging = staging_;
  std::unique_ptr<Communicator>& communicator = communicators_[group.name];
  if (!communicator) {
    communicator = recorded(rendezvous_->join(group), group.name, *recorder_);
    if (wrap_) communicator = wrap_(std::move(communicator));
  }
  return *communicator;
}

std::unique_ptr<Communicator> ProcessGroups::pair(int first_rank, int second_rank,
                                                  const std::string& name) {
  CHECK(rank_ == first_rank || rank_ == second_rank, "rank {} in a pair of {} and {}", rank_,
        first_rank, second_rank);
  const auto [low, high] = std::minmax(first_rank, second_rank);
  const Group group{.name = fmt::format("{}, ranks {} and {}", name, low, high),
                    .ranks = {low, high},
                    .index = rank_ == low ? 0 : 1,
                    .staging = {}};
  auto communicator = recorded(rendezvous_->join(group), group.name, *recorder_);
  return wrap_ ? wrap_(std::move(communicator)) : std::move(communicator);
}

void ProcessGroups::abort(const std::string& reason) {
  rendezvous_->abort(reason);
}

ProcessGroups::~ProcessGroups() = default;

}  // namespace sherd::sharding
