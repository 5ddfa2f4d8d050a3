/// Limits the threads that a process can still start, for death tests.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include "core/error.h"

namespace sherd::test {

/// From now on this process can start only `more` threads. Root has no such limit, so root becomes
/// a user without other processes. Any other user may have threads elsewhere, and can start none.
inline void allow_threads(int more) {
  const bool is_root = ::geteuid() == 0;
  const auto alone = static_cast<uid_t>(20000 + ::getpid() % 40000);
  if (is_root) SHERD_CHECK(::setresuid(alone, alone, alone) == 0, "can't become user {}", alone);
  const auto most = static_cast<rlim_t>(is_root ? 1 + more : 0);
  const rlimit limit{most, most};
  SHERD_CHECK(::setrlimit(RLIMIT_NPROC, &limit) == 0);
}

}  // namespace sherd::test
