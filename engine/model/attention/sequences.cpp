#include "engine/model/attention/sequences.h"

#include "engine/model/rng_sites.h"
#include "kernels/attention.h"
#include "kernels/kv_cache.h"

namespace sherd::model {
namespace {

class WholeSequences final : public Sequences {
 public:
  using Sequences::Sequences;

  void attend(std::int64_t block, const BlockTensors& kept, const Pass& pass,
              const Tensor& qkv_TE) override {
    kernels::attention_forward(compute_, {.shape = shape_.attention(block),
                                          .qkv = qkv_TE,
                                          .dropout = attention_dropout(pass, attention_site(block)),
                                          .out = kept[SiteId::kAttention].output,
                                          .lse = kept[SiteId::kAttention].statistic,
                                          .workspace = activations_.workspace,
                                          .documents = pass.documents,
                                          .keys_values = {},
                                          .maxima = maxima_of(block, pass),
                                          .sinks = kept.sinks});
  }

  void attend_backward(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                       const Tensor& d_attended_TD, const Tensor& d_qkv_TE) override {
    kernels::attention_backward(
        compute_, {.shape = shape_.attention(block),
                   .qkv = kept[SiteId::kQkv].output,
                   .out = kept[SiteId::kAttention].output,
                   .lse = kept[SiteId::kAttention].statistic,
                   .dout = d_attended_TD,
                   .dropout = attention_dropout(pass, attention_site(block)),
                   .dqkv = d_qkv_TE,
                   .workspace = activations_.workspace,
                   .documents = pass.documents,
                   .dkv = rows(activations_.d_kv, shape_.tokens(), shape_.kv_gradient_width()),
                   .keys_values = {}});
    sinks_gradient(shape_.attention(block), kept, kept[SiteId::kAttention].output, d_attended_TD);
  }
};

// There is no backward.
class CachedSequences final : public Sequences {
 public:
  using Sequences::Sequences;

  void attend(std::int64_t block, const BlockTensors& kept, const Pass& pass,
              const Tensor& qkv_TE) override {
    kernels::cached_attention(compute_,
                              {.shape = shape_.cached_attention(block),
                               .first = pass.first_position,
                               .count = shape_.tokens(),
                               .qkv = qkv_TE,
                               .cache = activations_.kv_cache[static_cast<std::size_t>(block)],
                               .out = kept[SiteId::kAttention].output,
                               .workspace = activations_.workspace,
                               .sinks = kept.sinks});
  }
  void attend_backward(std::int64_t, const BlockTensors&, const Pass&, const Tensor&,
                       const Tensor&) override {
    SHERD_CHECK(false, "a backward of text that is generated");
  }
};

}  // namespace

kernels::Documents Sequences::attention_documents(const Pass& pass) {
  kernels::Documents documents = pass.documents;
  documents.positions = {};
  return documents;
}

void Sequences::sinks_gradient(const kernels::AttentionShape& shape, const BlockTensors& kept,
                               const ConstTensor& out, const ConstTensor& d_out) {
  if (!kept.sinks) return;
  kernels::attention_sinks_gradient(compute_, {.shape = shape,
                                               .out = out,
                                               .lse = kept[SiteId::kAttention].statistic,
                                               .dout = d_out,
                                               .sinks = kept.sinks,
                                               .d_sinks = kept.d_sinks});
}

Tensor Sequences::maxima_of(std::int64_t block, const Pass& pass) const {
  if (!pass.attention_maxima) return {};
  const kernels::AttentionShape attention = shape_.attention(block);
  return pass.attention_maxima.part(block * shape_.all_query_heads() + attention.first_query_head,
                                    attention.query_heads);
}

std::unique_ptr<Sequences> make_sequences(Computation& computation) {
  const ModelShape& shape = computation.shape;
  if (shape.cached_positions > 0) return std::make_unique<CachedSequences>(computation);
  if (shape.context.deals_heads()) return make_dealt_heads(computation);
  if (shape.context.gathers_keys()) return make_gathered_keys(computation);
  if (shape.context.passes_keys()) return make_ring(computation);
  return std::make_unique<WholeSequences>(computation);
}

}  // namespace sherd::model
