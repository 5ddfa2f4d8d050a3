/// A process that the system lets have only so many threads more, for death tests.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include "core/error.h"

namespace sherd::test {

/// From now on this process gets `more` threads and no others. Root has no such limit, so root becomes
/// a user whom nobody else is; anybody else may have threads elsewhere and gets none at all.
inline void allow_threads(int more) {
  const bool is_root = ::geteuid() == 0;
  const auto alone = static_cast<uid_t>(20000 + ::getpid() % 40000);
  if (is_root) SHERD_CHECK(::setresuid(alone, alone, alone) == 0, "can't become user {}", alone);
  const auto most = static_cast<rlim_t>(is_root ? 1 + more : 0);
  const rlimit limit{most, most};
  SHERD_CHECK(::setrlimit(RLIMIT_NPROC, &limit) == 0);
}

}  // namespace sherd::test
