/// Streams of which one is late: its work begins only when something waits for it. The other
/// streams work immediately. Work that must wait for the late stream but doesn't always runs too
/// early. So a missing wait fails on the first run, not once in a thousand runs with random delays.
///
/// All streams of a rank work on the rank's own thread, in an order that depends only on its calls.
/// So ranks that make the same calls meet in their collectives. "compute" blocks its caller in
/// `wait`, like a CPU stream, unless it is the late one; then it is a queue, like a GPU stream.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/launch/machine.h"

namespace sherd::testing {

class LateStreams final : public engine::Machine {
 public:
  /// `late`: name of the late stream, "compute", "gather" or "reduce".
  explicit LateStreams(std::string late);

  /// Copies of this object share the same ranks.
  std::unique_ptr<Stream> make_stream(StreamOptions options) const override;

  class OneStream;
  using StreamsOfRank = std::vector<OneStream*>;

 private:
  struct Ranks {
    std::mutex mutex;
    std::map<int, std::shared_ptr<StreamsOfRank>> streams;
  };
  std::string late_;
  std::shared_ptr<Ranks> ranks_;
};

}  // namespace sherd::testing
