/// Rows of experts as routers may choose them, for the tests of kernels/experts.h on CPUs and GPUs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <vector>

#include "kernels/experts.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {

/// Where the router sends tokens: anywhere, all to the same experts, or only to the last ones. Each
/// eleventh token is padding.
enum class Routes { kRandom, kFirstExperts, kLastExperts };

/// The experts of each token, ascending.
inline std::vector<std::int32_t> routes(const ExpertsShape& shape, Routes kind,
                                        std::uint64_t seed) {
  std::vector<std::int32_t> chosen;
  const auto k = static_cast<std::size_t>(shape.per_token);
  const auto random = test::random_tokens(shape.tokens * shape.experts, 1 << 20, seed);
  for (std::int64_t t = 0; t < shape.tokens; ++t) {
    if (t % 11 == 7) {
      chosen.insert(chosen.end(), k, -1);
      continue;
    }
    std::vector<std::int32_t> order(static_cast<std::size_t>(shape.experts));
    std::iota(order.begin(), order.end(), 0);
    if (kind == Routes::kRandom) {
      std::ranges::stable_sort(order, {}, [&](std::int32_t e) {
        return random[static_cast<std::size_t>(t * shape.experts + e)];
      });
    } else if (kind == Routes::kLastExperts) {
      std::ranges::reverse(order);
    }
    order.resize(k);
    std::ranges::sort(order);
    chosen.insert(chosen.end(), order.begin(), order.end());
  }
  return chosen;
}

struct Routed {
  ExpertsShape shape;
  std::vector<std::int32_t> chosen;
  std::uint64_t number = 0;  ///< from 1
};

/// Shapes with one token, few rows for each expert, and more than a piece of rows; each with all
/// kinds of routes.
inline std::vector<Routed> routed_shapes() {
  std::vector<Routed> all;
  for (const auto& [tokens, width, experts, ffn_width, per_token] : {std::tuple{1, 12, 5, 7, 2},
                                                                     {40, 24, 6, 20, 3},
                                                                     {130, 33, 9, 17, 1},
                                                                     {70, 40, 4, 48, 4},
                                                                     {6, 24, 8, 13, 2},
                                                                     {1100, 8, 3, 6, 2}}) {
    for (const Routes kind : {Routes::kRandom, Routes::kFirstExperts, Routes::kLastExperts}) {
      const std::uint64_t number = all.size() + 1;
      ExpertsShape shape{tokens, width, experts, ffn_width, per_token};
      if (number % 3 == 0) shape.activation = ActivationKind::kGelu;
      shape.buffer_rows = experts_buffer_rows(shape);
      all.push_back({shape, routes(shape, kind, number), number});
    }
  }
  return all;
}

}  // namespace sherd::kernels
