// The weight gradients' workspace: for each block of tokens a row of sums for the query weights,
// one for the key weights, and one for the bias that there isn't.
#include "kernels/cpu/norm/qk_norm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/norm/norm_rows.h"
#include "kernels/cpu/pointwise.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

constexpr std::int64_t kMostWeightless = 1 << 16;  // the widest head of a recipe

/// One of a token's rows.
struct QkRow {
  std::int64_t at;   ///< its first element within the token, in qkv as in raw
  std::int64_t row;  ///< its place among the token's statistics
  bool is_query;
  int group;                 ///< of the heads, if it is one
  std::int64_t weights = 0;  ///< its first weight among those of queries, or of keys
};

NormShape row_shape(const QkNormShape& shape, bool is_query) {
  return {shape.kind, 1, shape.row_width(is_query), shape.eps,
          shape.weightless ? 1.0f : shape.weight_offset};
}

// Gradients of weights that heads share are added up in each group; weights of one head or column
// nobody shares.
int weight_groups(const QkNormShape& shape) {
  return shape.rows == QkRows::kHeads ? shape.groups : 1;
}

template <class Function>
void for_each_row(const QkNormShape& shape, Function&& function) {
  if (shape.rows == QkRows::kProjections) {
    function(QkRow{0, 0, true, 0});
    function(QkRow{shape.query_heads * shape.head_width, 1, false, 0});
    return;
  }
  for (std::int64_t head = 0; head < shape.heads(); ++head) {
    const bool is_query = head < shape.query_heads;
    const std::int64_t number = is_query ? head : head - shape.query_heads;
    const std::int64_t heads = is_query ? shape.query_heads : shape.kv_heads;
    function(QkRow{head * shape.head_width, head, is_query,
                   static_cast<int>(number * weight_groups(shape) / heads),
                   shape.rows == QkRows::kPerHead ? number * shape.head_width : 0});
  }
}

std::int64_t sums_of_a_block(const QkNormShape& shape) {
  return weight_groups(shape) * (shape.query_weights() + shape.key_weights()) +
         std::max(shape.query_weights(), shape.key_weights());
}

// What all blocks add up to, of one kind of weights at a time: of groups of heads, and of tokens.
std::int64_t sums_of_groups(const QkNormShape& shape) {
  const int heads = weight_groups(shape);
  const int sums = (heads == 1 ? 0 : heads) + shape.token_groups.groups;
  return sums * std::max(shape.query_weights(), shape.key_weights());
}

// `sum_of(first, count)` over a row's columns: of all of them, or as a tree over groups.
template <class SumOf>
float sum_in_groups(const SumOf& sum_of, std::int64_t first, std::int64_t columns, int groups) {
  if (groups == 1) return sum_of(first, columns);
  const std::int64_t half = columns / 2;
  const float lower = sum_in_groups(sum_of, first, half, groups / 2);
  return lower + sum_in_groups(sum_of, first + half, half, groups / 2);
}

// Elements of a whole projection, of which this rank may have a part.
float whole_width(const QkNormShape& shape, const QkRow& row) {
  return static_cast<float>((row.is_query ? shape.all_query_heads : shape.all_kv_heads) *
                            shape.head_width);
}

RowStatistics given_statistics(const QkNormForward& args, std::int64_t token, const QkRow& row) {
  const QkNormShape& shape = args.shape;
  const std::int64_t at = row.row * shape.tokens + token;
  const float width = whole_width(shape, row);
  const bool centred = shape.kind == NormKind::kLayerNorm;
  return {centred ? args.row_sums.as<float>()[at] / width : 0.0f,
          1.0f / std::sqrt(args.row_squares.as<float>()[at] / width + shape.eps)};
}

template <class T>
float sum_of_part(const QkNormSums& args, std::int64_t token, const QkRow& row) {
  const QkNormShape& shape = args.shape;
  const T* r = args.qkv.as<T>() + token * shape.packed_width() + row.at;
  const std::int64_t at = row.row * shape.tokens + token;
  const bool squares = shape.kind == NormKind::kRmsNorm || args.row_sums;
  const float mean = args.row_sums ? args.row_sums.as<float>()[at] / whole_width(shape, row) : 0.0f;
  const auto sum_of = [&](std::int64_t begin, std::int64_t columns) {
    LaneSum sum;
    for_each_block(begin, begin + columns, [&](std::int64_t first, int count) {
      BlockScratch scratch;
      const float* x = load_block(r + first, count, scratch);
      squares ? sum.add_squared_differences(x, mean, count) : sum.add_values(x, count);
    });
    return sum.total();
  };
  return sum_in_groups(sum_of, 0, row_shape(shape, row.is_query).width, shape.groups);
}

// Without weights, an offset of 1 and zeros.
template <class T, class Arguments>
const T* weight_of(const Arguments& args, const QkRow& row) {
  if (args.shape.weightless) {
    static const std::vector<T> kZeros(kMostWeightless, T{});
    return kZeros.data();
  }
  return (row.is_query ? args.query_weight : args.key_weight).template as<T>() + row.weights;
}

template <class T>
void normalise_token(const QkNormForward& args, std::int64_t token) {
  const QkNormShape& shape = args.shape;
  T* qkv = args.qkv.as<T>() + token * shape.packed_width();
  T* raw = args.raw.as<T>() + token * shape.raw_width();
  std::memcpy(raw, qkv, static_cast<std::size_t>(shape.raw_width()) * sizeof(T));
  for_each_row(shape, [&](const QkRow& row) {
    const NormShape norm = row_shape(shape, row.is_query);
    const T* weight = weight_of<T>(args, row);
    const RowStatistics statistics =
        shape.is_cut() ? given_statistics(args, token, row) : row_statistics(norm, raw + row.at);
    const std::int64_t kept = token * shape.rows_per_token() + row.row;
    if (args.mean) args.mean.as<float>()[kept] = statistics.mean;
    args.rstd.as<float>()[kept] = statistics.rstd;
    normalise_row(norm, weight, static_cast<const T*>(nullptr), raw + row.at, statistics,
                  qkv + row.at);
  });
}

// What a walk over all rows is for: the sums of parts of cut rows, or gradients.
enum class Pass { kSums, kGradient };

template <class T>
void differentiate_row(const QkNormBackward& args, Pass pass, std::int64_t token, const QkRow& row,
                       float* dweight, float* dbias) {
  const NormShape norm = row_shape(args.shape, row.is_query);
  const T* r = args.raw.as<T>() + token * args.shape.raw_width() + row.at;
  T* dy = args.dqkv.as<T>() + token * args.shape.packed_width() + row.at;
  const T* weight = weight_of<T>(args, row);
  const std::int64_t kept = token * args.shape.rows_per_token() + row.row;
  const bool centred = norm.kind == NormKind::kLayerNorm;
  const RowStatistics statistics{centred ? args.mean.as<float>()[kept] : 0.0f,
                                 args.rstd.as<float>()[kept]};
  const T* read = dy;
  RowMeans means{statistics.mean, statistics.rstd};
  if (!args.shape.is_cut()) {
    means = reduce_row(norm, statistics, r, read, weight, dweight, dbias);
  } else {
    auto* sums = args.row_sums.as<float>() + 2 * row.row * args.shape.tokens + token;
    float &sum_g = sums[0], &sum_g_xhat = sums[args.shape.tokens];
    if (pass == Pass::kSums) {
      const auto sum_of = [&](float RowMeans::*mean) {
        return [&, mean](std::int64_t first, std::int64_t columns) {
          NormShape part = norm;
          part.width = columns;
          return reduce_row(part, statistics, r + first, read + first, weight + first,
                            dweight + first, dbias + first).*
                     mean *
                 static_cast<float>(columns);
        };
      };
      sum_g = sum_in_groups(sum_of(&RowMeans::mean_g), 0, norm.width, args.shape.groups);
      sum_g_xhat = sum_in_groups(sum_of(&RowMeans::mean_g_xhat), 0, norm.width, args.shape.groups);
      return;
    }
    reduce_row(norm, statistics, r, read, weight, dweight, dbias);
    means.mean_g = sum_g / whole_width(args.shape, row);
    means.mean_g_xhat = sum_g_xhat / whole_width(args.shape, row);
  }
  for_each_block(0, norm.width, [&](std::int64_t first, int count) {
    BlockScratch dr_scratch;
    float* dr = block_target(dy + first, dr_scratch);
    differentiate_block(norm, means, r + first, read + first, weight + first,
                        static_cast<const T*>(nullptr), count, dr);
    store_block(dy + first, count, dr_scratch);
  });
}

// Partial sums of the weights' gradients, block of tokens by block, and what `pass` does to each
// row.
void differentiate(ThreadTeam& team, const QkNormBackward& args, Pass pass) {
  const QkNormShape& shape = args.shape;
  const std::int64_t stride = sums_of_a_block(shape);
  const BlocksOfTokens blocks(shape.token_groups, shape.tokens);
  auto* workspace = static_cast<float*>(args.workspace.data);
  dispatch_float(args.dqkv.dtype, [&]<class T>(T) {
    team.parallel_for(blocks.count(), [&](std::int64_t block, int) {
      float* d_query = workspace + block * stride;
      float* d_key = d_query + weight_groups(shape) * shape.query_weights();
      float* no_bias = d_key + weight_groups(shape) * shape.key_weights();
      std::memset(d_query, 0, static_cast<std::size_t>(stride) * sizeof(float));
      blocks.for_each_token(block, [&](std::int64_t token) {
        for_each_row(shape, [&](const QkRow& row) {
          float* dweight = row.is_query ? d_query + row.group * shape.query_weights()
                                        : d_key + row.group * shape.key_weights();
          differentiate_row<T>(args, pass, token, row, dweight + row.weights, no_bias);
        });
      });
    });
  });
}

}  // namespace

void qk_norm_sums(ThreadTeam& team, const QkNormSums& args) {
  const QkNormShape& shape = args.shape;
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    parallel_rows(team, shape.tokens, shape.raw_width(), [&](std::int64_t token) {
      for_each_row(shape, [&](const QkRow& row) {
        args.sums.as<float>()[row.row * shape.tokens + token] = sum_of_part<T>(args, token, row);
      });
    });
  });
}

void qk_norm_forward(ThreadTeam& team, const QkNormForward& args) {
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    parallel_rows(team, args.shape.tokens, args.shape.raw_width(),
                  [&](std::int64_t token) { normalise_token<T>(args, token); });
  });
}

std::int64_t qk_norm_backward_workspace_bytes(const QkNormShape& most) {
  return (BlocksOfTokens::most(most.token_groups, most.tokens) * sums_of_a_block(most) +
          sums_of_groups(most)) *
         static_cast<std::int64_t>(sizeof(float));
}

void qk_norm_backward_sums(ThreadTeam& team, const QkNormBackward& args) {
  differentiate(team, args, Pass::kSums);
}

void qk_norm_backward(ThreadTeam& team, const QkNormBackward& args) {
  differentiate(team, args, Pass::kGradient);
  const QkNormShape& shape = args.shape;
  auto* workspace = static_cast<float*>(args.workspace.data);
  const std::int64_t stride = sums_of_a_block(shape);
  const BlocksOfTokens blocks(shape.token_groups, shape.tokens);
  const int groups = weight_groups(shape), token_groups = blocks.num_groups();
  float* of_heads = workspace + blocks.count() * stride;
  const auto sum_group = [&](float* partial, const Tensor& sum) {
    if (groups == 1) return sum_partials(team, partial, blocks.of_a_group(), stride, false, sum);
    std::vector<ConstTensor> sums;
    for (int group = 0; group < groups; ++group) {
      const Tensor heads{of_heads + group * sum.numel, DType::kF32, sum.numel};
      sum_partials(team, partial + group * sum.numel, blocks.of_a_group(), stride, false, heads);
      sums.emplace_back(heads);
    }
    sum_as_trees(sums.data(), groups, groups, sum, false);
  };
  const auto sum_blocks = [&](float* partial, std::int64_t weights, const Tensor& gradient) {
    if (token_groups == 1) return sum_group(partial, gradient);
    float* of_tokens = of_heads + (groups == 1 ? 0 : groups * weights);
    std::vector<ConstTensor> sums;
    for (int group = 0; group < token_groups; ++group) {
      const Tensor sum = args.of_each_group
                             ? gradient.part(group * weights, weights)
                             : Tensor{of_tokens + group * weights, DType::kF32, weights};
      sum_group(partial + group * blocks.of_a_group() * stride, sum);
      sums.emplace_back(sum);
    }
    if (!args.of_each_group) {
      sum_as_trees(sums.data(), token_groups, token_groups, gradient, false);
    }
  };
  if (shape.weightless) return;
  sum_blocks(workspace, shape.query_weights(), args.d_query_weight);
  sum_blocks(workspace + groups * shape.query_weights(), shape.key_weights(), args.d_key_weight);
}

}  // namespace sherd::kernels::cpu
