/// Streams of which one is late: its work begins only when somebody waits for it, while the others
/// work at the call. Work that had to wait for the late stream and doesn't always runs before it,
/// so a missing wait shows at the first run, not once in a thousand with delays at random.
///
/// All streams of a rank work on the rank's own thread, in an order that its calls alone decide, so
/// ranks that make the same calls meet in their collectives. "compute" blocks its caller in `wait`,
/// as a CPU's does, unless it is the late one; then it is a queue, as a GPU's is.
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
  /// The stream of this name is late: "compute", "gather", "reduce".
  explicit LateStreams(std::string late);

  /// Copies of this object know the same ranks.
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
