#include "engine/train/pipeline/channels.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "core/error.h"
#include "sharding/comm/communicator.h"

namespace sherd::engine {
namespace {

constexpr int kInboxes = 2;

// The rank at another place of the pipeline, alike in everything else.
int rank_at(const sharding::Mesh& mesh, int rank, int place) {
  return mesh.group(rank, {std::string(sharding::kPipelineAxis)})[static_cast<std::size_t>(place)];
}

std::vector<BufferSpec> buffers_of(const ChannelEnd& end, const model::ModelShape& shape) {
  std::vector<BufferSpec> buffers;
  for (int i = 0; i < (end.sends ? 1 : kInboxes); ++i) {
    buffers.push_back(
        {fmt::format("{}.{}", end.name(), end.sends ? "out" : fmt::format("in.{}", i)),
         Category::kCommunication, shape.dtype, shape.residual_tokens() * shape.width,
         kForwardToBackward | kEvaluation});
  }
  return buffers;
}

}  // namespace

std::string ChannelEnd::name() const {
  return fmt::format("{}.{}", direction == Direction::kForward ? "activations" : "gradients",
                     boundary);
}

// In the order of boundaries, so that two ranks join the channels they share in the same order.
std::vector<ChannelEnd> channel_ends(const RankPipeline& pipeline, const sharding::Mesh& mesh,
                                     int rank) {
  const schedule::ChunkLayout& layout = pipeline.plan.layout();
  std::vector<ChannelEnd> ends;
  for (int boundary = 0; boundary < layout.last_chunk(); ++boundary) {
    if (!layout.crosses_after(boundary)) continue;
    const int before = layout.rank_of(boundary), behind = layout.rank_of(boundary + 1);
    if (pipeline.place != before && pipeline.place != behind) continue;
    const bool is_before = pipeline.place == before;
    const int peer = rank_at(mesh, rank, is_before ? behind : before);
    ends.push_back({boundary, Direction::kForward, is_before, peer});
    ends.push_back({boundary, Direction::kBackward, !is_before, peer});
  }
  return ends;
}

std::vector<BufferSpec> channel_buffers(const std::vector<ChannelEnd>& ends,
                                        const model::ModelShape& shape) {
  std::vector<BufferSpec> buffers;
  for (const ChannelEnd& end : ends) {
    for (BufferSpec& buffer : buffers_of(end, shape)) buffers.push_back(std::move(buffer));
  }
  return buffers;
}

sharding::Traffic channel_traffic(const std::vector<ChannelEnd>& ends,
                                  const model::ModelShape& shape, int num_micro_batches) {
  sharding::Traffic traffic;
  for (const ChannelEnd& end : ends) {
    const char* label = end.direction == Direction::kForward ? "activations" : "their gradients";
    constexpr auto kMessage = sharding::Collective::kBroadcast;
    if (end.sends) {
      traffic.add(label, kMessage, shape.dtype, shape.residual_tokens() * shape.width, 2,
                  num_micro_batches);
    } else {
      traffic.add_silent(label, kMessage, shape.dtype, num_micro_batches);
    }
  }
  return traffic;
}

struct Channels::End {
  ChannelEnd what;
  std::vector<Buffer> buffers;  // the outbox, or the inboxes
  std::unique_ptr<sharding::Communicator> communicator;
  std::unique_ptr<Event> written;
  std::array<std::unique_ptr<Event>, kInboxes> arrived, free;  // free[0]: of the outbox, too
  std::deque<int> expected;  // micro-batches that are posted and not released
  std::int64_t num_posted = 0;
  std::unique_ptr<Stream> stream;  // destroyed first: its work uses the others

  int root() const {
    const bool peer_is_first = communicator->rank() == 1;
    return what.sends == peer_is_first ? 1 : 0;
  }
};

Channels::Channels(const RankPipeline& pipeline, const model::ModelShape& shape,
                   const sharding::Rank& rank)
    : rank_(&rank), began_(rank.make_event()) {
  for (const ChannelEnd& what : channel_ends(pipeline, rank.mesh, rank.rank)) {
    auto end = std::make_unique<End>();
    end->what = what;
    for (const BufferSpec& buffer : buffers_of(what, shape)) {
      end->buffers.push_back(rank.memory->acquire(buffer));
    }
    end->communicator = rank.groups->pair(rank.rank, what.peer, what.name());
    // Of a purpose that has priority on a GPU.
    end->stream = rank.make_stream(StreamPurpose::kReduce, what.name());
    end->written = rank.make_event();
    for (auto& event : end->arrived) event = rank.make_event();
    for (auto& event : end->free) event = rank.make_event();
    ends_[{what.boundary, what.direction}] = std::move(end);
  }
}

Channels::~Channels() = default;

Channels::End& Channels::end(int boundary, Direction direction) {
  const auto found = ends_.find({boundary, direction});
  CHECK(found != ends_.end(), "no channel behind chunk {} on rank {}", boundary, rank_->rank);
  return *found->second;
}

Tensor Channels::outbox(int boundary, Direction direction) {
  End& end = this->end(boundary, direction);
  rank_->compute().wait(*end.free[0]);
  return end.buffers[0].tensor();
}

void Channels::send(int boundary, Direction direction, int micro_batch) {
  End& end = this->end(boundary, direction);
  CHECK(end.what.sends, "a send of {}, where it arrives", end.what.name());
  rank_->compute().record(*end.written);
  end.stream->wait(*end.written);
  end.communicator->broadcast(*end.stream,
                              fmt::format("{}, micro-batch {}", end.what.name(), micro_batch),
                              end.buffers[0].tensor(), end.root());
  end.stream->record(*end.free[0]);
}

void Channels::post(End& end, int micro_batch) {
  const auto inbox = static_cast<std::size_t>(end.num_posted++ % kInboxes);
  end.expected.push_back(micro_batch);
  end.stream->wait(*end.free[inbox]);
  end.communicator->broadcast(*end.stream,
                              fmt::format("{}, micro-batch {}", end.what.name(), micro_batch),
                              end.buffers[inbox].tensor(), end.root());
  end.stream->record(*end.arrived[inbox]);
}

void Channels::post(int boundary, Direction direction, int micro_batch) {
  End& end = this->end(boundary, direction);
  CHECK(!end.what.sends, "a receive of {}, where it is sent", end.what.name());
  const bool is_posted = std::ranges::find(end.expected, micro_batch) != end.expected.end();
  if (!is_posted && std::ssize(end.expected) < kInboxes) post(end, micro_batch);
}

Tensor Channels::receive(int boundary, Direction direction, int micro_batch) {
  post(boundary, direction, micro_batch);
  End& end = this->end(boundary, direction);
  CHECK(end.expected.front() == micro_batch, "{}: micro-batch {} comes before {}", end.what.name(),
        end.expected.front(), micro_batch);
  const std::int64_t number = end.num_posted - std::ssize(end.expected);
  const auto inbox = static_cast<std::size_t>(number % kInboxes);
  rank_->compute().wait(*end.arrived[inbox]);
  return end.buffers[inbox].tensor();
}

void Channels::release(int boundary, Direction direction) {
  End& end = this->end(boundary, direction);
  const std::int64_t number = end.num_posted - std::ssize(end.expected);
  end.expected.pop_front();
  rank_->compute().record(*end.free[static_cast<std::size_t>(number % kInboxes)]);
}

void Channels::begin() {
  rank_->compute().record(*began_);
  for (const auto& [key, end] : ends_) end->stream->wait(*began_);
}

void Channels::finish() {
  for (const auto& [key, end] : ends_) {
    if (end->what.sends) rank_->compute().wait(*end->free[0]);
  }
}

std::chrono::nanoseconds Channels::cpu_time() const {
  std::chrono::nanoseconds time{0};
  for (const auto& [key, end] : ends_) time += end->stream->cpu_time();
  return time;
}

}  // namespace sherd::engine
