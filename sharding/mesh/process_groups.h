/// A rank's communicators, one for each (axes, purpose).
///
/// On one communicator the order of calls is the order of execution. So purposes stay apart: a
/// prefetched all-gather must not queue behind a reduction. Groups with the same ranks and the same
/// purpose are one communicator, under whatever axes they are asked for.
///
/// Communicators are joined when they are first asked for, which is in constructors: all ranks
/// build the same things in the same order, and so join in the same order.
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

/// What every rank calls the group of `rank` along `axes`.
Group group_of(const Mesh& mesh, int rank, const AxisSet& axes, Purpose purpose);

/// Where a rank stages what it reduces, if its kind of communicator does (sharding/processes/mpi.h): on the
/// reduce stream, and where tensor or context ranks add, on the compute stream.
std::vector<BufferSpec> staging_buffers(const Mesh& mesh, std::int64_t bytes);

class ProcessGroups {
 public:
  ProcessGroups(const Mesh& mesh, int rank, std::shared_ptr<Rendezvous> rendezvous);
  ~ProcessGroups();

  /// The communicator of this rank's group along `axes`. It stays where it is.
  /// Errors   PeerError as Rendezvous::join.
  Communicator& get(const AxisSet& axes, Purpose purpose);
  /// All ranks of the world together.
  Communicator& world(Purpose purpose) { return get(mesh_.all_axes(), purpose); }

  /// The communicator of some ranks, called `name` by all of them; this rank is one. Ranks ask for those
  /// that they have in common in the same order. Each call is a new one.
  std::unique_ptr<Communicator> among(std::vector<int> ranks, const std::string& name,
                                      Purpose purpose);
  std::unique_ptr<Communicator> pair(int first_rank, int second_rank, const std::string& name);

  /// What this rank has sent: Rendezvous::sent_by.
  std::optional<LinkBytes> sent() const;

  /// Aborts the world: Rendezvous::abort.
  void abort(const std::string& reason);

  /// Communicators of this purpose that are joined from now on may stage others' contributions there;
  /// their calls are all on one stream, so they share it.
  void stage_in(Tensor memory, Purpose purpose) { staging_[purpose] = memory; }

  /// What all of them were asked for last.
  const FlightRecorder& recorder() const { return *recorder_; }

  /// Every communicator joined from now on goes through `wrap`; for tests and meters.
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
