#include "sharding/mesh/process_groups.h"

#include <algorithm>

#include "core/error.h"
#include "sharding/comm/flight_recorder.h"
#include "sharding/comm/rendezvous.h"

namespace sherd::sharding {

std::string_view name_of(Purpose purpose) {
  constexpr std::string_view kNames[] = {"gather", "reduce", "tensor"};
  return kNames[static_cast<std::size_t>(purpose)];
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
  if (mesh.num_owners() > 0 && axes.contains(kOwnerAxis)) {
    names += axes.size() > 1 ? " and owners" : "owners";
  }
  group.name = fmt::format("{}, {}, from rank {}", name_of(purpose),
                           names.empty() ? "alone" : names, group.ranks.front());
  return group;
}

std::vector<BufferSpec> staging_buffers(const Mesh& mesh, std::int64_t bytes) {
  if (bytes == 0) return {};
  std::vector<BufferSpec> buffers = {
      {"communicator.staging", Category::kCommunication, DType::kU8, bytes, kAlways}};
  if (mesh.degree(kTensorAxis) * mesh.degree(kContextAxis) > 1) {
    buffers.push_back(
        {"communicator.tensor_staging", Category::kCommunication, DType::kU8, bytes, kAlways});
  }
  return buffers;
}

ProcessGroups::ProcessGroups(const Mesh& mesh, int rank, std::shared_ptr<Rendezvous> rendezvous)
    : mesh_(mesh),
      rank_(rank),
      rendezvous_(std::move(rendezvous)),
      recorder_(std::make_unique<FlightRecorder>()) {}

Communicator& ProcessGroups::get(const AxisSet& axes, Purpose purpose) {
  Group group = group_of(mesh_, rank_, axes, purpose);
  if (const auto at = staging_.find(purpose); at != staging_.end()) group.staging = at->second;
  std::unique_ptr<Communicator>& communicator = communicators_[group.name];
  if (!communicator) {
    communicator = recorded(rendezvous_->join(group), group.name, *recorder_);
    if (wrap_) communicator = wrap_(std::move(communicator));
  }
  return *communicator;
}

std::unique_ptr<Communicator> ProcessGroups::among(std::vector<int> ranks, const std::string& name,
                                                   Purpose purpose) {
  std::ranges::sort(ranks);
  const auto own = std::ranges::find(ranks, rank_);
  SHERD_CHECK(own != ranks.end(), "rank {} asks for a group of others, {}", rank_, name);
  Group group{.name = fmt::format("{}, ranks", name),
              .ranks = ranks,
              .index = static_cast<int>(own - ranks.begin())};
  for (const int rank : ranks) group.name += fmt::format(" {}", rank);
  if (const auto at = staging_.find(purpose); at != staging_.end()) group.staging = at->second;
  auto communicator = recorded(rendezvous_->join(group), group.name, *recorder_);
  return wrap_ ? wrap_(std::move(communicator)) : std::move(communicator);
}

std::optional<LinkBytes> ProcessGroups::sent() const {
  return rendezvous_ ? rendezvous_->sent_by(rank_) : std::nullopt;
}

std::unique_ptr<Communicator> ProcessGroups::pair(int first_rank, int second_rank,
                                                  const std::string& name) {
  return among({first_rank, second_rank}, name, Purpose::kGather);
}

void ProcessGroups::abort(const std::string& reason) {
  rendezvous_->abort(reason);
}

ProcessGroups::~ProcessGroups() = default;

}  // namespace sherd::sharding
