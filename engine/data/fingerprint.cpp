#include "engine/data/fingerprint.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "engine/data/shuffle.h"

namespace sherd::data {
namespace {

std::uint64_t hash_piece(std::uint64_t hash, std::span<const std::uint8_t> bytes) {
  for (std::size_t offset = 0; offset < bytes.size(); offset += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + offset, std::min(sizeof(word), bytes.size() - offset));
    hash = mix(hash ^ word);
  }
  return hash;
}

}  // namespace

std::uint64_t fingerprint_of(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t kEnd = std::size_t{1} << 20;
  constexpr std::size_t kPiece = 4096;
  constexpr std::size_t kNumPieces = 64;
  std::uint64_t hash = mix(bytes.size());
  if (bytes.size() <= 2 * kEnd + kNumPieces * kPiece) return hash_piece(hash, bytes);
  hash = hash_piece(hash, bytes.first(kEnd));
  const std::size_t between = bytes.size() - 2 * kEnd - kPiece;
  for (std::size_t piece = 0; piece < kNumPieces; ++piece) {
    const std::size_t offset = kEnd + between / (kNumPieces - 1) * piece;
    hash = hash_piece(hash, bytes.subspan(offset, kPiece));
  }
  return hash_piece(hash, bytes.last(kEnd));
}

}  // namespace sherd::data
