// Of sequences that are cut over context ranks by the method all_gather (sequence_cut.h): the keys and values of all
// positions, one sequence after the other, so that each rank's part lies where it belongs.

#include "engine/model/transformer.h"
#include "kernels/columns.h"

namespace sherd::model {

// Empty where they aren't gathered.
ConstTensor Transformer::gather_keys_values(const char* what, const ConstTensor& qkv_TE) {
  if (!shape_.context.gathers_keys()) return {};
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

// This rank's queries have given gradients to the keys and values of all positions: of its own ones, the sum. Canonical
// sums of groups of query heads go over the ranks one by one, before they are added.
void Transformer::add_up_gathered_keys() {
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
    if (sums > 1) add_as_tree(terms, d_kv);
  }
}

}  // namespace sherd::model
