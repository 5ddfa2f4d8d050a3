#include "engine/model/attention/ring.h"

#include "engine/model/attention/sequences.h"
#include "engine/model/rng_sites.h"
#include "kernels/attention.h"
#include "kernels/columns.h"
#include "kernels/pointwise.h"

namespace sherd::model {
namespace {

// The rank whose keys `shape`'s has at this step.
int source_at(const ModelShape& shape, int step) {
  return (shape.context.rank - step + shape.context.degree) % shape.context.degree;
}

// All of a rank's queries.
kernels::AttentionShape attention_of_rank(const ModelShape& shape, std::int64_t block) {
  kernels::AttentionShape attention = shape.attention(block);
  attention.block = {};
  attention.first_query = 0;
  attention.queries = shape.seq_length;
  return attention;
}

bool sees(int query_half, int key_half, std::int64_t half, std::int64_t window) {
  if (key_half >= query_half) return key_half == query_half;
  const std::int64_t nearest = (query_half - key_half - 1) * half + 1;  // from a query to a key
  return window == 0 || nearest < window;
}

}  // namespace

std::vector<HalfPair> ring_pairs(const ModelShape& shape, std::int64_t window, int source) {
  const ContextPart& context = shape.context;
  const std::int64_t half = shape.position_run(0).count;
  std::vector<HalfPair> pairs;
  for (const HalfPair pair : {HalfPair{0, 0}, {1, 1}, {1, 0}, {0, 1}}) {
    if (sees(context.half(context.rank, pair.query), context.half(source, pair.key), half,
             window)) {
      pairs.push_back(pair);
    }
  }
  return pairs;
}

kernels::AttentionShape ring_attention(const ModelShape& shape, std::int64_t block, int source,
                                       const HalfPair& pair) {
  kernels::AttentionShape attention = shape.attention(block);
  const std::int64_t half = shape.position_run(0).count;
  attention.first_query = shape.position_run(pair.query).first;
  attention.block = {.first_key = shape.context.half(source, pair.key) * half,
                     .keys = half,
                     .rows = shape.seq_length,
                     .query_row = pair.query * half,
                     .key_row = pair.key * half};
  return attention;
}

namespace {

// Attention has other tokens than those whose positions a rank knows, and needs none.
class RingOfKeys final : public Sequences {
 public:
  using Sequences::Sequences;

  void attend(std::int64_t block, const BlockTensors& kept, const Pass& pass,
              const Tensor& qkv_TE) override;
  void attend_backward(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                       const Tensor& d_attended_TD, const Tensor& d_qkv_TE) override;

 private:
  Tensor passed_keys(int step) const;
  Tensor passed_gradients(int which) const;
  void send_keys_round(const char* what, const ConstTensor& qkv_TE);
};

Tensor RingOfKeys::passed_keys(int step) const {
  return rows(activations_.ring_keys[static_cast<std::size_t>(step % 2)], shape_.tokens(),
              shape_.kv_gradient_width());
}

Tensor RingOfKeys::passed_gradients(int which) const {
  return rows(activations_.d_ring_keys[static_cast<std::size_t>(which)], shape_.tokens(),
              shape_.kv_gradient_width());
}

// This rank's keys and values begin their way.
void RingOfKeys::send_keys_round(const char* what, const ConstTensor& qkv_TE) {
  const std::int64_t T = shape_.tokens(), N = shape_.kv_gradient_width();
  kernels::move_columns(compute_, {T, shape_.qkv_width(), shape_.heads_width(), N}, qkv_TE,
                        {T, N, 0, N}, passed_keys(0));
  collectives_.pass_on(what, passed_keys(0), passed_keys(1));
}

void RingOfKeys::attend(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                        const Tensor& qkv_TE) {
  const SiteTensors& site = kept[SiteId::kAttention];
  constexpr const char* kWhat = "keys and values";
  const int ranks = shape_.context.degree;
  const Tensor sum_TD = rows(activations_.ring_sum_TD, shape_.tokens(), shape_.heads_width());
  send_keys_round(kWhat, qkv_TE);
  for (int step = 0; step < ranks; ++step) {
    if (step > 0) {
      collectives_.await_passed();
      if (step + 1 < ranks) collectives_.pass_on(kWhat, passed_keys(step), passed_keys(step + 1));
    }
    const int source = source_at(shape_, step);
    for (const HalfPair& pair : ring_pairs(shape_, shape_.layer(block).window, source)) {
      const bool begins = step == 0 && pair.query == pair.key;
      kernels::attention_forward(
          compute_, {.shape = ring_attention(shape_, block, source, pair),
                     .qkv = qkv_TE,
                     .dropout = attention_dropout(pass, attention_site(block)),
                     .out = sum_TD,
                     .lse = site.statistic,
                     .workspace = activations_.workspace,
                     .documents = attention_documents(pass),
                     .keys_values = step == 0 ? ConstTensor() : ConstTensor(passed_keys(step)),
                     .merge = !begins,
                     .maxima = maxima_of(block, pass)});
    }
  }
  collectives_.await_sent();
  if (kept.sinks) {
    kernels::join_attention_sinks(
        compute_, {attention_of_rank(shape_, block), kept.sinks, sum_TD, site.statistic});
  }
  kernels::cast(compute_, sum_TD, site.output);
}

void RingOfKeys::attend_backward(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                                 const Tensor& d_attended_TD, const Tensor& d_qkv_TE) {
  const Tensor& qkv_TE = kept[SiteId::kQkv].output;
  const SiteTensors& site = kept[SiteId::kAttention];
  constexpr const char *kKeys = "keys and values, again",
                       *kGradients = "gradients of passed keys and values";
  const int ranks = shape_.context.degree;
  const std::int64_t T = shape_.tokens(), width = shape_.heads_width();
  const Tensor dq_TD = rows(activations_.ring_sum_TD, T, width);
  const Tensor home_TN = rows(activations_.d_kv, T, shape_.kv_gradient_width());
  const auto add_pairs = [&](int step, const Tensor& dkv_TN, auto&& takes) {
    const int source = source_at(shape_, step);
    for (const HalfPair& pair : ring_pairs(shape_, shape_.layer(block).window, source)) {
      if (!takes(pair)) continue;
      kernels::attention_backward(
          compute_, {.shape = ring_attention(shape_, block, source, pair),
                     .qkv = qkv_TE,
                     .out = site.output,
                     .lse = site.statistic,
                     .dout = d_attended_TD,
                     .dropout = attention_dropout(pass, attention_site(block)),
                     .dqkv = {},
                     .workspace = activations_.workspace,
                     .documents = attention_documents(pass),
                     .dkv = dkv_TN,
                     .keys_values = step == 0 ? ConstTensor() : ConstTensor(passed_keys(step)),
                     .dq = dq_TD});
    }
  };
  send_keys_round(kKeys, qkv_TE);
  for (const Tensor& sum : {dq_TD, home_TN}) kernels::fill_zero(compute_, sum);
  add_pairs(0, home_TN, [](const HalfPair& pair) { return pair.query == pair.key; });
  for (int step = 1; step < ranks; ++step) {
    const bool goes_on = step + 1 < ranks;
    if (step == 1) collectives_.await_passed();
    if (goes_on) collectives_.pass_on(kKeys, passed_keys(step), passed_keys(step + 1));
    // The sum of the ranks before goes on with this rank's part; of two places it goes from one to
    // the other.
    const Tensor part_TN = passed_gradients(step == 1 ? 0 : 2);
    Tensor sum_TN = part_TN;
    kernels::fill_zero(compute_, part_TN);
    add_pairs(step, part_TN, [](const HalfPair&) { return true; });
    if (step > 1) {
      sum_TN = passed_gradients((step - 1) % 2);
      collectives_.await_passed();
      kernels::add(compute_, part_TN, sum_TN);
    }
    collectives_.pass_on(kGradients, sum_TN, passed_gradients(step % 2));
    if (goes_on) collectives_.await_passed();
  }
  add_pairs(0, home_TN, [](const HalfPair& pair) { return pair.query != pair.key; });
  collectives_.await_passed();
  kernels::add(compute_, passed_gradients((ranks - 1) % 2), home_TN);
  collectives_.await_sent();
  kernels::store_columns(compute_, {T, shape_.qkv_width(), 0, width}, dq_TD, d_qkv_TE);
  sinks_gradient(attention_of_rank(shape_, block), kept, site.output, d_attended_TD);
}

}  // namespace

std::unique_ptr<Sequences> make_ring(Computation& computation) {
  return std::make_unique<RingOfKeys>(computation);
}

}  // namespace sherd::model
