/// Where this program's own file is, to start it again in another process.
#pragma once

#include <string>

namespace sherd::main {

std::string own_path();

}  // namespace sherd::main
