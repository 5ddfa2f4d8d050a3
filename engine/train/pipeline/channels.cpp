#include "engine/train/pipeline/channels.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "core/error.h"
#include "sharding/comm/communicator.h"
#include "sharding/mesh/process_groups.h"
#include "sharding/mesh/waits.h"

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
    const int before = layout.rank_of(boundary), after = layout.rank_of(boundary + 1);
    if (pipeline.place != before && pipeline.place != after) continue;
    const bool is_before = pipeline.place == before;
    const int peer = rank_at(mesh, rank, is_before ? after : before);
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
    const sharding::Callers both{.count = 2, .peer = end.peer};
    constexpr auto kMessage = sharding::Collective::kBroadcast;
    if (end.sends) {
      traffic.add(label, kMessage, shape.dtype, shape.residual_tokens() * shape.width, both,
                  num_micro_batches);
    } else {
      traffic.add_silent(label, kMessage, shape.dtype, both, num_micro_batches);
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
  std::array<std::unique_ptr<Event>, kInboxes> called;         // of each box, where calls meet
  std::deque<int> wanted;       // micro-batches for which there was no room yet
  std::deque<int> expected;     // those that are posted and not released
  bool first_is_taken = false;  // of these: the compute stream waits for it
  std::int64_t num_posted = 0;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Stream> caller;  // destroyed first: its work uses the others

  int root() const {
    const bool peer_is_first = communicator->rank() == 1;
    return what.sends == peer_is_first ? 1 : 0;
  }
  std::size_t first_inbox() const {
    return static_cast<std::size_t>((num_posted - std::ssize(expected)) % kInboxes);
  }

  // What goes through `box`, after `before`, and records `after` at its end.
  void call(std::size_t box, int micro_batch, const Event& before, Event& after) {
    const auto make = [this, box, micro_batch, &before, &after] {
      stream->wait(before);
      communicator->broadcast(*stream, fmt::format("{}, micro-batch {}", what.name(), micro_batch),
                              buffers[box].tensor(), root());
      stream->record(after);
    };
    if (!caller) return make();
    caller->run("call", make);
    caller->record(*called[box]);
  }
};

Channels::Channels(const RankPipeline& pipeline, const model::ModelShape& shape,
                   const sharding::Rank& rank)
    : rank_(&rank), began_(rank.make_event()) {
  for (const ChannelEnd& what : channel_ends(pipeline, rank.mesh, rank.rank)) {
    auto end = std::make_unique<End>();
    end->what = what;
    for (const BufferSpec& buffer : buffers_of(what, shape)) {
      end->buffers.push_back(rank.acquire(buffer));
    }
    end->communicator = rank.groups->pair(rank.rank, what.peer, what.name());
    // Of a purpose that has priority on a GPU.
    end->stream = rank.make_stream(StreamPurpose::kReduce, what.name());
    end->written = rank.make_event();
    const std::size_t waits = sharding::wait_kind(sharding::kPipelineAxis);
    for (auto& event : end->arrived) event = sharding::counted(rank.make_event(), waits);
    for (auto& event : end->free) event = sharding::counted(rank.make_event(), waits);
    if (end->communicator->calls_meet()) {
      StreamOptions thread;
      thread.purpose = StreamPurpose::kReduce;
      thread.name = what.name();
      thread.rank = rank.rank;
      end->caller = make_cpu_worker_stream(thread);
      for (auto& event : end->called) event = make_cpu_event();
      if (!callers_) callers_ = make_cpu_compute_stream({});
    }
    ends_[{what.boundary, what.direction}] = std::move(end);
  }
}

Channels::~Channels() = default;

Channels::End& Channels::end(int boundary, Direction direction) {
  const auto found = ends_.find({boundary, direction});
  SHERD_CHECK(found != ends_.end(), "no channel after chunk {} on rank {}", boundary, rank_->rank);
  return *found->second;
}

// An event says something only when the call that records it has been made.
void Channels::wait_for_call(const End& end, std::size_t box) {
  if (end.caller) callers_->wait(*end.called[box]);
}

Tensor Channels::outbox(int boundary, Direction direction) {
  End& end = this->end(boundary, direction);
  wait_for_call(end, 0);
  rank_->compute().wait(*end.free[0]);
  return end.buffers[0].tensor();
}

void Channels::send(int boundary, Direction direction, int micro_batch) {
  End& end = this->end(boundary, direction);
  SHERD_CHECK(end.what.sends, "a send of {}, where it arrives", end.what.name());
  rank_->compute().record(*end.written);
  end.call(0, micro_batch, *end.written, *end.free[0]);
}

void Channels::post_wanted(End& end) {
  const auto has_room = [&] {
    return end.expected.empty() || (end.first_is_taken && std::ssize(end.expected) < kInboxes);
  };
  while (!end.wanted.empty() && has_room()) {
    const auto inbox = static_cast<std::size_t>(end.num_posted++ % kInboxes);
    const int micro_batch = end.wanted.front();
    end.wanted.pop_front();
    end.expected.push_back(micro_batch);
    end.call(inbox, micro_batch, *end.free[inbox], *end.arrived[inbox]);
  }
}

void Channels::post(int boundary, Direction direction, int micro_batch) {
  End& end = this->end(boundary, direction);
  SHERD_CHECK(!end.what.sends, "a receive of {}, where it is sent", end.what.name());
  const auto is_in = [&](const std::deque<int>& messages) {
    return std::ranges::find(messages, micro_batch) != messages.end();
  };
  if (is_in(end.expected) || is_in(end.wanted)) return;
  end.wanted.push_back(micro_batch);
  post_wanted(end);
}

Tensor Channels::receive(int boundary, Direction direction, int micro_batch) {
  post(boundary, direction, micro_batch);
  End& end = this->end(boundary, direction);
  SHERD_CHECK(end.expected.front() == micro_batch, "{}: micro-batch {} comes before {}",
              end.what.name(), end.expected.front(), micro_batch);
  const std::size_t inbox = end.first_inbox();
  wait_for_call(end, inbox);
  rank_->compute().wait(*end.arrived[inbox]);
  end.first_is_taken = true;
  post_wanted(end);
  return end.buffers[inbox].tensor();
}

void Channels::release(int boundary, Direction direction) {
  End& end = this->end(boundary, direction);
  rank_->compute().record(*end.free[end.first_inbox()]);
  end.expected.pop_front();
  end.first_is_taken = false;
  post_wanted(end);
}

void Channels::begin() {
  rank_->compute().record(*began_);
  for (const auto& [key, end] : ends_) end->stream->wait(*began_);
}

void Channels::finish() {
  for (const auto& [key, end] : ends_) {
    if (!end->what.sends) continue;
    wait_for_call(*end, 0);
    rank_->compute().wait(*end->free[0]);
  }
}

std::chrono::nanoseconds Channels::cpu_time() const {
  std::chrono::nanoseconds time{0};
  for (const auto& [key, end] : ends_) {
    time += end->stream->cpu_time();
    if (end->caller) time += end->caller->cpu_time();
  }
  return time;
}

}  // namespace sherd::engine
