/// Messages between the ranks of a pipeline: outputs of chunks forward, gradients of their inputs
/// backward. There is one channel for each boundary between two chunks on different ranks, and
/// direction.
///
///   sender     outbox ────────▶  two inboxes     receiver
///
/// A chunk's last block writes into the outbox. The transfer overlaps the following computation,
/// and the outbox is free when the message has arrived. A receive can be posted before it is
/// needed, so the message arrives during the preceding computation. Each channel has a communicator
/// of two ranks and a stream at each end, so no message waits for one of another channel.
///
/// Order    A channel's receive is enqueued on its stream when the compute stream waits for the
///          previous one, not earlier. NCCL starts a GPU's collectives in the order of their calls,
///          over all its communicators. A second receive can't start while the first one waits. The
///          rank's own sends would queue after it, although the awaited message may need them.
/// Threads  if calls block until all ranks have made them (Communicator::calls_meet), each end
///          makes its calls on its own thread. The rank's thread waits for such a call when it
///          needs its event.
///
/// Errors   PeerError if the other rank stopped. A posted receive may wait for as long as a
///          micro-batch takes through all other ranks and back, so run.peer_timeout must be longer
///          than a step.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/train/layout/pipeline_plan.h"
#include "sharding/mesh/rank.h"
#include "sharding/mesh/traffic.h"

namespace sherd::sharding {
class Communicator;
}

namespace sherd::engine {

enum class Direction { kForward, kBackward };

/// One end of a channel, as its rank sees it: the boundary is between `boundary` and the chunk
/// after it.
struct ChannelEnd {
  int boundary = 0;
  Direction direction = Direction::kForward;
  bool sends = false;
  int peer = 0;  ///< a rank of the world

  std::string name() const;
};
std::vector<ChannelEnd> channel_ends(const RankPipeline& pipeline, const sharding::Mesh& mesh,
                                     int rank);

/// Buffers for messages: the residual stream of a micro-batch, or its gradient.
std::vector<BufferSpec> channel_buffers(const std::vector<ChannelEnd>& ends,
                                        const model::ModelShape& shape);
/// What a rank sends in a step.
sharding::Traffic channel_traffic(const std::vector<ChannelEnd>& ends,
                                  const model::ModelShape& shape, int num_micro_batches);

class Channels {
 public:
  Channels(const RankPipeline& pipeline, const model::ModelShape& shape,
           const sharding::Rank& rank);
  ~Channels();

  /// Where the next message is written. The compute stream waits until the previous one has left.
  Tensor outbox(int boundary, Direction direction);
  /// Sends the message in the outbox, which the compute stream has written.
  void send(int boundary, Direction direction, int micro_batch);

  /// Posts the receive of this message, the next one not posted yet. It starts as soon as there is
  /// room.
  void post(int boundary, Direction direction, int micro_batch);
  /// The message, posted here if it hasn't been. The compute stream waits until it has arrived.
  Tensor receive(int boundary, Direction direction, int micro_batch);
  /// Frees the message's buffer after the work that is enqueued on the compute stream.
  void release(int boundary, Direction direction);

  /// A step or a pass begins: messages wait for what the compute stream did before in their memory.
  void begin();
  /// The compute stream waits until all messages have left.
  void finish();

  /// Processor time of the streams' threads, in total.
  std::chrono::nanoseconds cpu_time() const;

 private:
  struct End;
  End& end(int boundary, Direction direction);
  void post_wanted(End& end);
  void wait_for_call(const End& end, std::size_t box);

  const sharding::Rank* rank_;
  std::unique_ptr<Stream> callers_;  // the rank's thread, which waits for calls on other threads
  std::unique_ptr<Event> began_;
  std::map<std::pair<int, Direction>, std::unique_ptr<End>> ends_;
};

}  // namespace sherd::engine
