/// Sums over tokens in groups, as a balanced tree: for models whose gradients don't depend on how
/// many ranks share the positions of their sequences (docs/precision.md, "canonical").
///
///   group j   positions [j N, (j + 1) N) of every sequence here, one sequence after another
///   tree      of g = 2^n groups: (tree of the first g / 2) + (tree of the others)
///
/// A rank that has the first half of the positions, in half as many groups, has the tree's left
/// part.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/error.h"

namespace sherd::kernels {

inline constexpr int kMostTokenGroups = 8;

/// Tokens [sequences, positions], and how they are grouped.
struct TokenGroups {
  int groups = 0;               ///< 2^n; 0: sums aren't in groups
  std::int64_t of_a_group = 0;  ///< N; the last groups may have fewer positions, or none
  std::int64_t sequences = 1, positions = 0;

  explicit operator bool() const { return groups > 0; }
  /// Positions of a group in every sequence.
  std::int64_t first(int group) const { return std::min(group * of_a_group, positions); }
  std::int64_t count(int group) const { return first(group + 1) - first(group); }
};

inline void check_token_groups(const TokenGroups& groups, std::int64_t tokens) {
  SHERD_CHECK(groups.groups > 0 && std::has_single_bit(static_cast<unsigned>(groups.groups)) &&
                  groups.sequences * groups.positions == tokens &&
                  groups.groups * groups.of_a_group >= groups.positions,
              "{} groups of {} positions of {} sequences of {}, for {} tokens", groups.groups,
              groups.of_a_group, groups.sequences, groups.positions, tokens);
}

}  // namespace sherd::kernels
