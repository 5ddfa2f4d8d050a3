#include "tests/fake_cuda/nccl_collective.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "core/dtype.h"

namespace fake_nccl {
namespace {

template <class T>
void add(const std::vector<const T*>& inputs, std::size_t first, std::size_t count, T* out) {
  for (std::size_t i = 0; i < count; ++i) {
    // A ring begins with the rank after the one that ends up with the sum.
    T sum = inputs[(first + 1) % inputs.size()][i];
    for (std::size_t hop = 2; hop <= inputs.size(); ++hop) {
      const T next = inputs[(first + hop) % inputs.size()][i];
      if constexpr (std::is_same_v<T, unsigned char>) {
        sum = std::max(sum, next);  // the only one asked for in bytes
      } else {
        sum = T(static_cast<float>(sum) + static_cast<float>(next));
      }
    }
    out[i] = sum;
  }
}

template <class T>
void add_parts(const Collective& c, std::size_t offset, std::size_t owner, std::vector<char>& out) {
  std::vector<const T*> inputs;
  for (const Part& part : c.parts) inputs.push_back(reinterpret_cast<const T*>(part.send) + offset);
  add<T>(inputs, owner, c.count, reinterpret_cast<T*>(out.data()));
}

std::vector<char> sum_of(const Collective& c, std::size_t offset, std::size_t owner) {
  std::vector<char> out(c.count * size_of(c.type));
  if (c.type == ncclFloat32) add_parts<float>(c, offset, owner, out);
  if (c.type == ncclBfloat16) add_parts<sherd::BFloat16>(c, offset, owner, out);
  if (c.type == ncclFloat16) add_parts<sherd::Float16>(c, offset, owner, out);
  if (c.type == ncclUint8) add_parts<unsigned char>(c, offset, owner, out);
  return out;
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  return type == ncclFloat32 ? 4 : type == ncclUint8 ? 1 : 2;
}

void misuse(const char* what) {
  std::fprintf(stderr, "NCCL misused: %s\n", what);
  std::abort();
}

// All results first: a rank's output may be another's input.
void execute(const Collective& c) {
  const std::size_t bytes = c.count * size_of(c.type), world = c.parts.size();
  std::vector<std::vector<char>> results(world);
  for (std::size_t r = 0; r < world; ++r) {
    switch (c.kind) {
      case Kind::kAllGather:
        for (const Part& part : c.parts) {
          results[r].insert(results[r].end(), part.send, part.send + bytes);
        }
        break;
      case Kind::kReduceScatter:
        results[r] = sum_of(c, r * c.count, r);
        break;
      case Kind::kAllReduce:
        results[r] = sum_of(c, 0, 0);
        break;
      case Kind::kAllToAll:
        for (std::size_t peer = 0; peer < world; ++peer) {
          const Stretch sent = c.parts[peer].sends[r];
          if (sent.bytes != c.parts[r].receives[peer].bytes) {
            misuse("a receive of another size than its send");
          }
          if (sent.bytes == 0) continue;
          results[r].insert(results[r].end(), sent.data, sent.data + sent.bytes);
        }
        break;
      case Kind::kBroadcast: {
        const char* from = c.parts[static_cast<std::size_t>(c.root)].send;
        results[r].assign(from, from + bytes);
      }
    }
  }
  for (std::size_t r = 0; r < world; ++r) {
    if (c.kind != Kind::kAllToAll) {
      std::memcpy(c.parts[r].receive, results[r].data(), results[r].size());
      continue;
    }
    const char* from = results[r].data();
    for (const Stretch& received : c.parts[r].receives) {
      if (received.bytes > 0) std::memcpy(const_cast<char*>(received.data), from, received.bytes);
      from += received.bytes;
    }
  }
}

}  // namespace fake_nccl
