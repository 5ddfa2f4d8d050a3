#include "sherd/version.h"

#include "engine/launch/system_info.h"

namespace sherd::v0 {

std::string version() {
  return std::string(engine::version());
}

}  // namespace sherd::v0
