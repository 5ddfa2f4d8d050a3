/// A collective of the fake NCCL (nccl.cpp): what its members send, and what they then receive.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <vector>

#include "tests/fake_cuda/scheduler.h"

namespace fake_nccl {

enum class Kind { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kAllToAll };

/// Memory of one send or receive.
struct Stretch {
  const char* data = nullptr;
  std::size_t bytes = 0;
};

/// One member.
struct Part {
  const char* send = nullptr;
  char* receive = nullptr;
  std::vector<Stretch> sends{}, receives{};  // of a group of sends and receives, by peer
};

struct Collective {
  Kind kind{};
  std::size_t count = 0;
  ncclDataType_t type{};
  int root = 0;
  std::vector<Part> parts{};
  std::vector<char> begun{};
  fake_cuda::Knowledge known{};
  bool complete = false;
};

std::size_t size_of(ncclDataType_t type);

/// Sends and adds, once all members have begun.
void execute(const Collective& collective);

/// Ends the program.
[[noreturn]] void misuse(const char* what);

}  // namespace fake_nccl
