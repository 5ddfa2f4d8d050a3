// T tokens, E experts. Blocks of one warp have up to 32 neighbouring tokens of a sequence.
#include "kernels/router_rules.h"

#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"

namespace sherd::kernels::cuda {
namespace {

namespace rules = router_rules;

constexpr int kWarp = 32;
static_assert(rules::kChunk == kWarp);

/// One token's numbers among those of a block, so that neighbouring threads have neighbouring ones.
struct Apart {
  float* first;
  __device__ float& operator[](std::int64_t i) const { return first[i * kWarp]; }
};

/// The tokens of a block.
struct Chunk {
  std::int64_t sequence, first, count;

  __device__ explicit Chunk(const RouterShape& shape) {
    const std::int64_t chunks = (shape.positions + rules::kChunk - 1) / rules::kChunk;
    sequence = blockIdx.x / chunks;
    const std::int64_t position = blockIdx.x % chunks * rules::kChunk;
    const std::int64_t rest = shape.positions - position;
    first = sequence * shape.positions + position;
    count = rest < rules::kChunk ? rest : rules::kChunk;
  }
};

/// What each block adds up: for each expert its probabilities, then the squares of z; and how many
/// of its tokens chose each expert.
struct ChunkSums {
  double* sums;          // [blocks, E + 1]
  std::int32_t* counts;  // [blocks, E]
};

struct Routes {
  const float *logits, *bias;
  const std::int32_t *starts, *lengths;
  std::int64_t documents;
  RowPart part;
  std::int32_t* chosen;
  float* weights;
};

// Chooses a token's experts; whether it has any.
__device__ bool route(const RouterShape& shape, const Routes& routes, std::int64_t t,
                      const Apart& value) {
  std::int32_t* chosen = routes.chosen + t * shape.per_token;
  float* weights = routes.weights + t * shape.per_token;
  const std::int64_t token = routes.part.token_of(t, shape.positions);
  if (rules::is_padding(routes.starts, routes.lengths, routes.documents, token)) {
    for (int j = 0; j < shape.per_token; ++j) {
      chosen[j] = -1;
      weights[j] = 0.0f;
    }
    return false;
  }
  rules::choose(shape, routes.logits + t * shape.experts, routes.bias, value, chosen, weights);
  return true;
}

// Without kDecides, experts are chosen already.
template <bool kDecides>
__global__ void __launch_bounds__(kWarp)
    route_chunk(const RouterShape shape, const Routes routes, const ChunkSums out) {
  extern __shared__ float scratch[];
  __shared__ float most[kWarp], sum[kWarp], log_sum[kWarp];
  __shared__ int routed[kWarp];
  const auto lane = static_cast<int>(threadIdx.x);
  const std::int64_t E = shape.experts;
  const Chunk chunk(shape);
  const std::int64_t t = chunk.first + lane;
  bool goes = lane < chunk.count;
  if (kDecides) {
    goes = goes && route(shape, routes, t, Apart{scratch + lane});
  } else {
    goes = goes && routes.chosen[t * shape.per_token] >= 0;
  }
  routed[lane] = goes ? 1 : 0;
  if (routed[lane] != 0) {
    const float* logits = routes.logits + t * E;
    if (shape.balance > 0.0f) {
      const rules::Probabilities p = rules::probabilities_of(shape, logits);
      most[lane] = p.softmax.most;
      sum[lane] = p.softmax.sum;
    }
    if (shape.z > 0.0f) log_sum[lane] = rules::softmax_of(logits, E).log_sum();
  }
  __syncthreads();
  for (std::int64_t e = lane; e <= E; e += kWarp) {
    double total = 0.0;
    std::int32_t count = 0;
    for (int i = 0; i < chunk.count; ++i) {
      if (routed[i] == 0) continue;
      const std::int64_t token = chunk.first + i;
      if (e == E) {
        if (shape.z > 0.0f)
          total += static_cast<double>(log_sum[i]) * static_cast<double>(log_sum[i]);
        continue;
      }
      if (shape.balance > 0.0f) {
        rules::Probabilities p;
        p.sigmoid = shape.score == RouterScore::kSigmoid;
        p.softmax.most = most[i];
        p.softmax.sum = sum[i];
        total += static_cast<double>(p(routes.logits[token * E + e]));
      }
      const std::int32_t* chosen = routes.chosen + token * shape.per_token;
      for (int j = 0; j < shape.per_token; ++j) count += chosen[j] == e;
    }
    out.sums[blockIdx.x * (E + 1) + e] = total;
    if (e < E) out.counts[blockIdx.x * E + e] = count;
  }
}

struct Finish {
  ChunkSums in;
  // What counts of a sequence add up: those of its chunks, or of ranks, `step` numbers apart.
  const std::int32_t* parts;
  std::int64_t num_parts, step, of_sequence;
  const std::int32_t* previous;  // null: the group's own counts
  std::int32_t* counts;
  float* balance;  // null: counts alone
  std::int64_t groups;

  __device__ std::int32_t count_of(std::int64_t sequence, std::int64_t expert) const {
    const std::int32_t* part = parts + sequence * of_sequence + expert;
    std::int32_t count = 0;
    for (std::int64_t i = 0; i < num_parts; ++i) count += part[i * step];
    return count;
  }
};

// A block finishes a balance group: the sums of its chunks, in order, of each sequence.
__global__ void __launch_bounds__(device_common::kThreads)
    finish_balance_groups(const RouterShape shape, const Finish finish) {
  __shared__ double sums[kMostGpuExperts + 1];
  __shared__ std::int32_t group_counts[kMostGpuExperts];
  __shared__ std::int64_t scratch[32];
  const std::int64_t E = shape.experts, group = blockIdx.x;
  const std::int64_t chunks = (shape.positions + rules::kChunk - 1) / rules::kChunk;
  const std::int64_t sequences = shape.sequences / finish.groups;
  std::int64_t choices = 0;
  for (std::int64_t e = threadIdx.x; e <= E; e += blockDim.x) {
    double sum = 0.0;
    std::int32_t count = 0;
    for (std::int64_t b = group * sequences; b < (group + 1) * sequences; ++b) {
      double own_sum = 0.0;
#pragma unroll 8
      for (std::int64_t chunk = b * chunks; chunk < (b + 1) * chunks; ++chunk) {
        own_sum += finish.in.sums[chunk * (E + 1) + e];
      }
      const std::int32_t own_count = e < E ? finish.count_of(b, e) : 0;
      sum += own_sum;
      count += own_count;
      if (e < E) finish.counts[b * E + e] = own_count;
    }
    sums[e] = sum;
    if (e < E) group_counts[e] = count;
    choices += count;
  }
  const std::int64_t tokens = block_sum(choices, scratch) / shape.per_token;
  if (threadIdx.x != 0 || finish.balance == nullptr) return;
  const std::int32_t* counted = finish.previous != nullptr ? finish.previous : group_counts;
  const std::int64_t of = finish.previous != nullptr ? finish.previous[E] : tokens;
  float* balance = finish.balance + group * (E + 2);
  double loss = 0.0;
  for (std::int64_t e = 0; e < E; ++e) {
    const double slope = rules::slope_of(shape, tokens, of, counted[e]);
    loss += slope * sums[e];
    balance[e] = static_cast<float>(slope);
  }
  balance[E] = static_cast<float>(loss);
  balance[E + 1] = tokens == 0 ? 0.0f
                               : static_cast<float>(static_cast<double>(shape.z) * sums[E] /
                                                    static_cast<double>(tokens));
}

__global__ void __launch_bounds__(device_common::kThreads)
    add_router_totals(const RouterShape shape, std::int64_t groups, const std::int32_t* counts,
                      const float* balance, double* totals) {
  const std::int64_t E = shape.experts;
  for (std::int64_t i = threadIdx.x; i < E + 2; i += blockDim.x) {
    double total = totals[i];
    if (i < E) {
      for (std::int64_t b = 0; b < shape.sequences; ++b) {
        total += static_cast<double>(counts[b * E + i]);
      }
    } else {
      for (std::int64_t group = 0; group < groups; ++group) {
        total += static_cast<double>(balance[group * (E + 2) + i]);
      }
    }
    totals[i] = total;
  }
}

/// Whether experts have more or fewer rows than the mean, a bit each.
struct Corrections {
  static constexpr std::int64_t kExperts = kMostGpuExperts;
  std::uint32_t below[kExperts / 32] = {}, above[kExperts / 32] = {};
};

__global__ void __launch_bounds__(device_common::kThreads)
    correct_biases(const __grid_constant__ Corrections corrections, std::int64_t first, float rate,
                   std::int64_t count, float* bias) {
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const std::int64_t e = first + i;
    const std::uint32_t bit = 1u << (e % 32);
    if ((corrections.below[e / 32] & bit) != 0) bias[i] += rate;
    if ((corrections.above[e / 32] & bit) != 0) bias[i] -= rate;
  }
}

struct Backward {
  const float *logits, *weights, *d_weights, *balance;
  const std::int32_t *chosen, *counts;
  float loss_scale;
  float* d_logits;
  bool per_sequence;
};

// Each thread has a token's sums; then all write one token's gradients after the other.
__global__ void __launch_bounds__(kWarp)
    route_backward_chunk(const RouterShape shape, const Backward args) {
  // As bytes, since shared memory isn't initialised.
  alignas(8) __shared__ unsigned char storage[kWarp * sizeof(rules::Gradient)];
  auto* gradients = reinterpret_cast<rules::Gradient*>(storage);
  const auto lane = static_cast<int>(threadIdx.x);
  const std::int64_t E = shape.experts;
  const int k = shape.per_token;
  const Chunk chunk(shape);
  std::int32_t choices = 0;
  if (shape.z > 0.0f) {
    const std::int64_t first = args.per_sequence ? chunk.sequence * E : 0;
    const std::int64_t count = args.per_sequence ? E : shape.sequences * E;
    for (std::int64_t i = lane; i < count; i += kWarp) choices += args.counts[first + i];
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      choices += __shfl_xor_sync(0xffffffffu, choices, offset);
    }
  }
  const auto token_at = [&](std::int64_t t) {
    rules::Token token;
    token.logits = args.logits + t * E;
    token.chosen = args.chosen + t * k;
    token.weights = args.weights + t * k;
    token.d_weights = args.d_weights + t * k;
    token.slopes = args.balance + (args.per_sequence ? chunk.sequence : 0) * (E + 2);
    token.tokens = static_cast<float>(choices / k);
    token.loss_scale = args.loss_scale;
    return token;
  };
  if (lane < chunk.count && args.chosen[(chunk.first + lane) * k] >= 0) {
    gradients[lane] = rules::gradient_of(shape, token_at(chunk.first + lane));
  }
  __syncthreads();
  for (int i = 0; i < chunk.count; ++i) {
    const rules::Token token = token_at(chunk.first + i);
    float* d_logits = args.d_logits + (chunk.first + i) * E;
    for (std::int64_t e = lane; e < E; e += kWarp) {
      if (token.chosen[0] < 0) {
        d_logits[e] = 0.0f;
        continue;
      }
      int choice = -1;
      for (int j = 0; j < k; ++j) choice = token.chosen[j] == e ? j : choice;
      d_logits[e] = gradients[i].by_logit(shape, token, e, choice);
    }
  }
}

unsigned chunks_of(const RouterShape& shape) {
  return grid_of(shape.sequences * rules::chunks_of(shape));
}

ChunkSums sums_in(const Tensor& workspace, const RouterShape& shape) {
  auto* sums = static_cast<double*>(workspace.data);
  const auto chunks = static_cast<std::int64_t>(chunks_of(shape));
  return {sums, reinterpret_cast<std::int32_t*>(sums + chunks * (shape.experts + 1))};
}

template <class Args>
const std::int32_t* counted_before(const Args& args) {
  return args.shape.scope == BalanceScope::kPreviousStep
             ? args.previous_counts.template as<std::int32_t>()
             : nullptr;
}

void finish_groups(Stream& stream, const RouterShape& shape, const Finish& finish) {
  finish_balance_groups<<<grid_of(shape.balance_groups()), device_common::kThreads, 0,
                          handle_of(stream)>>>(shape, finish);
  check_launch("router (sums)");
}

}  // namespace

void router_forward(Stream& stream, const RouterForward& args) {
  const RouterShape& shape = args.shape;
  const ChunkSums between = sums_in(args.workspace, shape);
  const auto shared = static_cast<std::size_t>(rules::scratch_numel(shape) * kWarp) * sizeof(float);
  check_cuda(cudaFuncSetAttribute(route_chunk<true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared)),
             "cudaFuncSetAttribute");
  const Routes routes{args.logits.as<float>(),
                      args.bias.as<float>(),
                      args.documents.starts.as<std::int32_t>(),
                      args.documents.lengths.as<std::int32_t>(),
                      args.documents.count(),
                      args.part,
                      args.chosen.as<std::int32_t>(),
                      args.weights.as<float>()};
  route_chunk<true><<<chunks_of(shape), kWarp, shared, handle_of(stream)>>>(shape, routes, between);
  check_launch("router_forward");
  const std::int64_t E = shape.experts, chunks = rules::chunks_of(shape);
  finish_groups(stream, shape,
                {between, between.counts, chunks, E, chunks * E, counted_before(args),
                 args.counts.as<std::int32_t>(), args.balance.as<float>(), shape.balance_groups()});
}

void router_losses(Stream& stream, const RouterLosses& args) {
  const RouterShape& shape = args.shape;
  const ChunkSums between = sums_in(args.workspace, shape);
  Routes routes{};
  routes.logits = args.logits.as<float>();
  routes.chosen = const_cast<std::int32_t*>(args.chosen.as<std::int32_t>());  // and not written
  route_chunk<false><<<chunks_of(shape), kWarp, 0, handle_of(stream)>>>(shape, routes, between);
  check_launch("router_losses");
  const std::int64_t counts = args.counts.numel;
  finish_groups(stream, shape,
                {between, args.rank_counts.as<std::int32_t>(), args.rank_counts.numel / counts,
                 counts, shape.experts, counted_before(args), args.counts.as<std::int32_t>(),
                 args.balance.as<float>(), shape.balance_groups()});
}

void router_totals(Stream& stream, const RouterTotals& args) {
  add_router_totals<<<1, device_common::kThreads, 0, handle_of(stream)>>>(
      args.shape, args.shape.balance_groups(), args.counts.as<std::int32_t>(),
      args.balance.as<float>(), args.totals.as<double>());
  check_launch("router_totals");
}

void router_correction(Stream& stream, const RouterCorrection& args) {
  if (args.bias.numel == 0) return;
  const auto experts = static_cast<std::int64_t>(args.counts.size());
  std::int64_t sum = 0;
  for (const std::int64_t count : args.counts) sum += count;
  Corrections corrections;
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t own = experts * args.counts[static_cast<std::size_t>(e)];
    const std::uint32_t bit = 1u << (e % 32);
    if (own < sum) corrections.below[e / 32] |= bit;
    if (own > sum) corrections.above[e / 32] |= bit;
  }
  correct_biases<<<1, device_common::kThreads, 0, handle_of(stream)>>>(
      corrections, args.first, args.rate, args.bias.numel, args.bias.as<float>());
  check_launch("router_correction");
}

void router_backward(Stream& stream, const RouterBackward& args) {
  const Backward backward{args.logits.as<float>(),
                          args.weights.as<float>(),
                          args.d_weights.as<float>(),
                          args.balance.as<float>(),
                          args.chosen.as<std::int32_t>(),
                          args.counts.as<std::int32_t>(),
                          args.loss_scale,
                          args.d_logits.as<float>(),
                          args.shape.scope == BalanceScope::kSequence};
  route_backward_chunk<<<chunks_of(args.shape), kWarp, 0, handle_of(stream)>>>(args.shape,
                                                                               backward);
  check_launch("router_backward");
}

}  // namespace sherd::kernels::cuda
