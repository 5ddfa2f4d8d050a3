// Sequences that are cut over context ranks by the method all_gather (cut/sequence_cut.h): the keys
// and values of all positions, one sequence after the other, so that each rank's part is where it
// belongs.

#include "engine/model/attention/sequences.h"
#include "engine/model/cut/sums.h"
#include "engine/model/rng_sites.h"
#include "kernels/attention.h"
#include "kernels/columns.h"

namespace sherd::model {
namespace {

// Attention has other tokens than those whose positions a rank knows, and needs none.
class GatheredKeys final : public Sequences {
 public:
  using Sequences::Sequences;

  void attend(std::int64_t block, const BlockTensors& kept, const Pass& pass,
              const Tensor& qkv_TE) override;
  void attend_backward(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                       const Tensor& d_attended_TD, const Tensor& d_qkv_TE) override;

 private:
  ConstTensor gather_keys_values(const char* what, const ConstTensor& qkv_TE);
  void add_up_gathered_keys();
};

void GatheredKeys::attend(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                          const Tensor& qkv_TE) {
  kernels::attention_forward(compute_,
                             {.shape = shape_.attention(block),
                              .qkv = qkv_TE,
                              .dropout = attention_dropout(pass, attention_site(block)),
                              .out = kept[SiteId::kAttention].output,
                              .lse = kept[SiteId::kAttention].statistic,
                              .workspace = activations_.workspace,
                              .documents = attention_documents(pass),
                              .keys_values = gather_keys_values("keys and values", qkv_TE),
                              .maxima = maxima_of(block, pass),
                              .sinks = kept.sinks});
}

void GatheredKeys::attend_backward(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                                   const Tensor& d_attended_TD, const Tensor& d_qkv_TE) {
  const Tensor& qkv_TE = kept[SiteId::kQkv].output;
  kernels::attention_backward(compute_,
                              {.shape = shape_.attention(block),
                               .qkv = qkv_TE,
                               .out = kept[SiteId::kAttention].output,
                               .lse = kept[SiteId::kAttention].statistic,
                               .dout = d_attended_TD,
                               .dropout = attention_dropout(pass, attention_site(block)),
                               .dqkv = d_qkv_TE,
                               .workspace = activations_.workspace,
                               .documents = attention_documents(pass),
                               .dkv = activations_.d_keys_values.tensor(),
                               .keys_values = gather_keys_values("keys and values, again", qkv_TE),
                               .dkv_of_each_group = true});
  add_up_gathered_keys();
  sinks_gradient(shape_.attention(block), kept, kept[SiteId::kAttention].output, d_attended_TD);
}

ConstTensor GatheredKeys::gather_keys_values(const char* what, const ConstTensor& qkv_TE) {
  const std::int64_t S = shape_.seq_length, N = shape_.kv_gradient_width();
  const std::int64_t row = S * shape_.qkv_width(), part = S * N;
  const Tensor all =
      activations_.keys_values.tensor().part(0, shape_.sequences * shape_.context.degree * part);
  for (std::int64_t b = 0; b < shape_.sequences; ++b) {
    const Tensor sequence =
        all.part(b * shape_.context.degree * part, shape_.context.degree * part);
    kernels::move_columns(compute_, {S, shape_.qkv_width(), shape_.heads_width(), N},
                          qkv_TE.part(b * row, row), {S, N, 0, N},
                          sequence.part(shape_.context.rank * part, part));
    collectives_.gather_positions(what, sequence);
  }
  return all;
}

// This rank's queries have given gradients to the keys and values of all positions: of its own
// ones, the sum. Canonical sums of groups of query heads go over the ranks one by one, before they
// are added.
void GatheredKeys::add_up_gathered_keys() {
  const std::int64_t part = shape_.seq_length * shape_.kv_gradient_width();
  const std::int64_t sequence = shape_.context.degree * part;
  const int sums = shape_.gathered_key_sums();
  for (std::int64_t b = 0; b < shape_.sequences; ++b) {
    const Tensor d_kv = activations_.d_kv.tensor().part(b * part, part);
    std::vector<Tensor> terms;
    for (int sum = 0; sum < sums; ++sum) {
      const Tensor all = activations_.d_keys_values.tensor().part(
          (sum * shape_.sequences + b) * sequence, sequence);
      terms.push_back(sums == 1 ? d_kv : all.part(shape_.context.rank * part, part));
      collectives_.reduce_scatter_positions("gradients of all keys and values", all, terms.back());
    }
    if (sums > 1) c_.sums->add_as_tree(terms, d_kv);
  }
}

}  // namespace

std::unique_ptr<Sequences> make_gathered_keys(Computation& computation) {
  return std::make_unique<GatheredKeys>(computation);
}

}  // namespace sherd::model
