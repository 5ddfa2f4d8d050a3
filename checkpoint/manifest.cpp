#include "checkpoint/manifest.h"

#include <fmt/core.h>

namespace sherd::checkpoint {

std::string shard_name(int shard, int num_shards) {
  return fmt::format("shard-{:05}-of-{:05}.h5", shard, num_shards);
}

std::string step_directory_name(std::int64_t step) {
  return fmt::format("step-{:010}", step);
}

}  // namespace sherd::checkpoint
