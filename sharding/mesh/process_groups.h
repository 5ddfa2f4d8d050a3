/// A rank's communicators, one for each (axes, purpose).
///
/// On one communicator the order of calls is the order of execution. So each purpose has its own: a
/// prefetched all-gather must not queue after a reduction. Groups with the same ranks and the same
/// purpose share one communicator, whichever axes they are requested for.
///
/// Communicators are joined when they are first requested, which happens in constructors. All ranks
/// construct the same objects in the same order, and so join in the same order.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/link_bytes.h"
#include "core/memory.h"
#include "sharding/mesh/mesh.h"

namespace sherd::sharding {

class Communicator;
class FlightRecorder;
class Rendezvous;
struct Group;

/// kTensor: what a model exchanges inside its layers, on the compute stream.
enum class Purpose { kGather, kReduce, kTensor };
std::string_view name_of(Purpose purpose);

/// The group of `rank` along `axes`; all its members give it the same name.
Group group_of(const Mesh& mesh, int rank, const AxisSet& axes, Purpose purpose);

/// Staging memory of a rank's reductions, if its kind of communicator needs it
/// (sharding/processes/mpi.h). One part is for the reduce stream; one is for the compute stream if
/// tensor or context ranks add.
std::vector<BufferSpec> staging_buffers(const Mesh& mesh, std::int64_t bytes);

class ProcessGroups {
 public:
  ProcessGroups(const Mesh& mesh, int rank, std::shared_ptr<Rendezvous> rendezvous);
  ~ProcessGroups();

  /// The communicator of this rank's group along `axes`. Its address doesn't change.
  /// Errors   PeerError as Rendezvous::join.
  Communicator& get(const AxisSet& axes, Purpose purpose);
  /// All ranks of the world.
  Communicator& world(Purpose purpose) { return get(mesh_.all_axes(), purpose); }

  /// A communicator of some ranks, including this one; all of them call it `name`. Ranks request
  /// the communicators that they share in the same order. Each call makes a new one.
  std::unique_ptr<Communicator> among(std::vector<int> ranks, const std::string& name,
                                      Purpose purpose);
  std::unique_ptr<Communicator> pair(int first_rank, int second_rank, const std::string& name);

  /// What this rank has sent: Rendezvous::sent_by.
  std::optional<LinkBytes> sent() const;

  /// Aborts the world: Rendezvous::abort.
  void abort(const std::string& reason);

  /// Communicators of this purpose that are joined from now on may stage others' contributions
  /// there. Their calls are all on one stream, so they share the memory.
  void stage_in(Tensor memory, Purpose purpose) { staging_[purpose] = memory; }

  /// The latest calls of all communicators.
  const FlightRecorder& recorder() const { return *recorder_; }

  /// Every communicator joined from now on is passed through `wrap`; for tests and meters.
  using Wrap = std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)>;
  void wrap_with(Wrap wrap) { wrap_ = std::move(wrap); }

 private:
  const Mesh mesh_;
  const int rank_;
  const std::shared_ptr<Rendezvous> rendezvous_;
  std::map<Purpose, Tensor> staging_;
  Wrap wrap_;
  const std::unique_ptr<FlightRecorder> recorder_;  // outlives the communicators
  std::map<std::string, std::unique_ptr<Communicator>> communicators_;
};

}  // namespace sherd::sharding
