/// What goes between the ranks of a pipeline: outputs of chunks forwards, gradients of their inputs
/// backwards. One channel for each boundary between two chunks on different ranks, and direction.
///
///   sender     outbox ────────▶  two inboxes     receiver
///
/// A chunk's last block writes into the outbox, and the message leaves it beside whatever is computed next;
/// the outbox is free when it has arrived. A receive can be posted before it is needed, so that a
/// message arrives under the computation before its own. Each channel has a communicator of two ranks
/// and a stream at each end, so no message waits for one of another channel.
///
/// Order    A channel's receive goes to its stream when the compute stream waits for the one before it, not
///          earlier. NCCL begins a GPU's collectives in the order of their calls, over all its
///          communicators: behind a second receive, which can't begin while the first one waits, the
///          rank's own sends would wait for a message that may need them.
/// Threads  where calls meet (Communicator::calls_meet), each end makes its own on a thread of its own. The
///          rank's thread waits for such a call when it needs its event.
///
/// Errors   PeerError where the other rank stopped. A posted receive may wait for as long as a micro-batch takes
///          through all other ranks and back, so run.peer_timeout must be longer than a step.
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

/// One end of a channel, as its rank sees it: between `boundary` and the chunk behind it.
struct ChannelEnd {
  int boundary = 0;
  Direction direction = Direction::kForward;
  bool sends = false;
  int peer = 0;  ///< a rank of the world

  std::string name() const;
};
std::vector<ChannelEnd> channel_ends(const RankPipeline& pipeline, const sharding::Mesh& mesh,
                                     int rank);

/// A message: the residual stream of a micro-batch, or its gradient.
std::vector<BufferSpec> channel_buffers(const std::vector<ChannelEnd>& ends,
                                        const model::ModelShape& shape);
/// What is sent in a step.
sharding::Traffic channel_traffic(const std::vector<ChannelEnd>& ends,
                                  const model::ModelShape& shape, int num_micro_batches);

class Channels {
 public:
  Channels(const RankPipeline& pipeline, const model::ModelShape& shape,
           const sharding::Rank& rank);
  ~Channels();

  /// Where the next message is written: the compute stream waits until the last one has left.
  Tensor outbox(int boundary, Direction direction);
  /// The compute stream has written it.
  void send(int boundary, Direction direction, int micro_batch);

  /// This message may come, the next one that hasn't been posted yet, as soon as there is room for it.
  void post(int boundary, Direction direction, int micro_batch);
  /// It: the compute stream waits until it is there. Posted here, if it hasn't been.
  Tensor receive(int boundary, Direction direction, int micro_batch);
  /// The compute stream has no readers of it beyond what is enqueued.
  void release(int boundary, Direction direction);

  /// A step or a pass begins: messages come behind whatever the compute stream did in their memory.
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
  std::unique_ptr<Stream> callers_;  // the rank's thread, as what waits for calls on other threads
  std::unique_ptr<Event> began_;
  std::map<std::pair<int, Direction>, std::unique_ptr<End>> ends_;
};

}  // namespace sherd::engine
