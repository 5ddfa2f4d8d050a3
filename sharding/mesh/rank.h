/// One participant: its place in the mesh, its memory, its streams, its communicators.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>

#include "core/memory.h"
#include "core/stream.h"
#include "sharding/mesh/mesh.h"

namespace sherd {
class OffloadHome;
struct LinkBytes;
}  // namespace sherd

namespace sherd::sharding {

class ProcessGroups;

struct Rank {
  Rank();
  Rank(Rank&&) noexcept;
  ~Rank();

  int rank = 0;
  Mesh mesh;
  int world_size() const { return mesh.world_size(); }
  /// Index of this rank's part among the parts into which the batch is divided over ranks.
  int data_index() const { return mesh.index_in_group(rank, data_axes()); }
  int data_degree() const { return mesh.degree(data_axes()); }
  /// Whether this rank contributes to sums over tokens. Among ranks with the same tokens and the
  /// same part of the pipeline, one does. Along the pipeline, it is the one that has the losses.
  bool contributes_tokens() const {
    if (mesh.is_owner(rank)) return false;
    AxisSet axes = mesh.other_axes(token_axes());
    axes.erase(std::string(kPipelineAxis));
    return mesh.is_first(rank, axes);
  }

  // Members are destroyed in reverse order: first the streams (their threads are joined), then
  // communicators, then memory. So nothing is freed that a stream still uses.
  std::unique_ptr<Allocator> memory;
  /// Host memory that the device can reach, if the device has its own memory; otherwise null.
  std::unique_ptr<Allocator> host_memory;
  /// State that is on disk or, for a GPU, on the host between uses; null if there is none.
  std::shared_ptr<OffloadHome> offload_home;
  std::vector<Buffer> staging;  ///< for reductions, if ranks are in several processes
  std::unique_ptr<ProcessGroups> groups;

  Stream& compute() const { return *compute_stream; }
  Stream& gather() const { return *gather_stream; }
  Stream& reduce() const { return *reduce_stream; }
  std::unique_ptr<Event> make_event() const { return compute().make_event(); }

  /// Whether host code must not access `memory`.
  bool separate_memory() const { return host_memory != nullptr; }
  /// Acquires a buffer at its home: kHost in `host_memory` if there is one, kDisk in
  /// `offload_home`, all others in `memory`. (The twin of a kMirrored buffer is a separate buffer: MirroredBuffer.)
  Buffer acquire(const BufferSpec& spec) const;
  /// The same for an optional buffer: an empty one if there is no spec.
  Buffer acquire(const std::optional<BufferSpec>& spec) const {
    return spec ? acquire(*spec) : Buffer();
  }
  /// What it has sent: ProcessGroups::sent.
  std::optional<LinkBytes> sent() const;
  /// Total time that computation has waited for `offload_home`.
  std::chrono::nanoseconds waited_for_state() const;
  /// use(part, its first element) for the parts of a tensor, in order: one if it is in memory; if it
  /// is in `offload_home`, several, which are brought into memory. With `writes`, changes are kept.
  /// `use` may enqueue work on `stream` (OffloadHome::each_part).
  void each_part(Stream& stream, const Tensor& tensor, bool writes,
                 const std::function<void(const Tensor& part, std::int64_t first)>& use) const;
  /// Threads that host code may use for work of a rank on a GPU: its share of the cores.
  int host_threads = 1;
  /// Makes one more stream of this rank's device.
  std::function<std::unique_ptr<Stream>(StreamPurpose purpose, const std::string& name)>
      make_stream;

  /// Runs `work` and returns when this rank's streams are idle. If it throws, the world is first
  /// aborted with the reason, so that no peer waits. The error is rethrown once the streams are
  /// idle; what `work` used may be destroyed only then.
  void guard(const std::function<void()>& work) const;

  std::function<void(std::exception_ptr)> report_failure;  ///< called before peers learn of it

  std::unique_ptr<Stream> compute_stream;
  std::unique_ptr<Stream> gather_stream;
  std::unique_ptr<Stream> reduce_stream;
};

}  // namespace sherd::sharding
