#include "kernels/cpu/random.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace sherd::kernels::cpu {
namespace {

constexpr int kGroup = 8;  // counters whose rounds run side by side

#ifdef __AVX2__

// Four counters, one in the low half of each 64-bit lane. The high halves hold leftovers that
// nothing reads: the multiplication takes low halves only.
struct FourBlocks {
  __m256i c0, c1, c2, c3;
};

FourBlocks four_blocks(const RandomAddress& address, std::uint64_t block) {
  const __m256i counter = _mm256_add_epi64(_mm256_set1_epi64x(static_cast<std::int64_t>(block)),
                                           _mm256_set_epi64x(3, 2, 1, 0));
  return {counter, _mm256_srli_epi64(counter, 32), _mm256_set1_epi64x(address.step),
          _mm256_set1_epi64x(address.site)};
}

void one_round(FourBlocks& b, __m256i k0, __m256i k1) {
  const __m256i p0 = _mm256_mul_epu32(b.c0, _mm256_set1_epi64x(0xD2511F53));
  const __m256i p1 = _mm256_mul_epu32(b.c2, _mm256_set1_epi64x(0xCD9E8D57));
  b.c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), b.c1), k0);
  b.c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), b.c3), k1);
  b.c1 = p1;
  b.c3 = p0;
}

void store_words(const FourBlocks& b, std::uint32_t* word) {
  const __m256i first = _mm256_blend_epi32(b.c0, _mm256_slli_epi64(b.c1, 32), 0xaa);
  const __m256i second = _mm256_blend_epi32(b.c2, _mm256_slli_epi64(b.c3, 32), 0xaa);
  const __m256i even = _mm256_unpacklo_epi64(first, second);
  const __m256i odd = _mm256_unpackhi_epi64(first, second);
  auto* out = reinterpret_cast<__m256i*>(word);
  _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}

void random_group(const RandomAddress& address, std::uint64_t block, std::uint32_t* word) {
  FourBlocks a = four_blocks(address, block);
  FourBlocks b = four_blocks(address, block + 4);
  // Keys count in the low halves too; their carries go to the halves that nothing reads.
  __m256i k0 = _mm256_set1_epi64x(static_cast<std::int64_t>(address.seed));
  __m256i k1 = _mm256_set1_epi64x(static_cast<std::int64_t>(address.seed >> 32));
  for (int round = 0; round < 10; ++round) {
    one_round(a, k0, k1);
    one_round(b, k0, k1);
    k0 = _mm256_add_epi64(k0, _mm256_set1_epi64x(0x9E3779B9));
    k1 = _mm256_add_epi64(k1, _mm256_set1_epi64x(0xBB67AE85));
  }
  store_words(a, word);
  store_words(b, word + 16);
}

#else

void random_group(const RandomAddress& address, std::uint64_t block, std::uint32_t* word) {
  for (std::uint64_t i = 0; i < kGroup; ++i) {
    const RandomBlock random = random_block(address, block + i);
    std::copy_n(random.word, 4, word + 4 * i);
  }
}

#endif

}  // namespace

const std::uint32_t* random_words(const RandomAddress& address, std::int64_t first, int count,
                                  WordScratch& scratch) {
  const std::uint64_t block = static_cast<std::uint64_t>(first) >> 2;
  const int skipped = static_cast<int>(first & 3);
  for (int word = 0; word < skipped + count; word += 4 * kGroup) {
    random_group(address, block + static_cast<std::uint64_t>(word / 4), scratch.word + word);
  }
  return scratch.word + skipped;
}

}  // namespace sherd::kernels::cpu
