// Sequences that are cut over context ranks by the method ulysses (cut/sequence_cut.h): positions
// become heads and back.

#include "engine/model/attention/sequences.h"
#include "engine/model/rng_sites.h"
#include "kernels/attention.h"
#include "kernels/columns.h"
#include "kernels/pointwise.h"

namespace sherd::model {
namespace {

// Attention has other tokens than those whose positions a rank knows, and needs none.
class DealtHeads final : public Sequences {
 public:
  using Sequences::Sequences;

  Tensor qkv_place(const Tensor&) const override {
    return rows(activations_.deal_qkv, shape_.tokens(), shape_.qkv_width());
  }
  void attend(std::int64_t block, const BlockTensors& kept, const Pass& pass,
              const Tensor& qkv_TE) override;
  void attend_backward(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                       const Tensor& d_attended_TD, const Tensor& d_qkv_TE) override;

 private:
  enum class HeadRows { kQkv, kQueries };
  std::vector<kernels::Columns> columns_of(HeadRows rows, int rank) const;
  void reorder_sequences(const Tensor& from, const Tensor& to, bool by_rank);
  void to_heads(const char* what, HeadRows rows, const ConstTensor& own, const Tensor& all);
  void to_positions(const char* what, HeadRows rows, const Tensor& all, const Tensor& own);
  BlockTensors with_own_sinks(std::int64_t block, const BlockTensors& kept) const;
};

// Those of the heads that this rank computes.
BlockTensors DealtHeads::with_own_sinks(std::int64_t block, const BlockTensors& kept) const {
  BlockTensors own = kept;
  const std::int64_t heads = shape_.attention(block).query_heads;
  const std::int64_t first = shape_.context.rank * heads;
  if (kept.sinks) own.sinks = kept.sinks.part(first, heads);
  if (kept.d_sinks) own.d_sinks = kept.d_sinks.part(first, heads);
  return own;
}

void DealtHeads::attend(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                        const Tensor& qkv_TE) {
  const Tensor& of_heads = kept[SiteId::kQkv].output;
  to_heads("queries, keys and values", HeadRows::kQkv, qkv_TE, of_heads);
  const Tensor out = rows(activations_.deal_out, shape_.tokens(), shape_.heads_width());
  kernels::attention_forward(compute_, {.shape = shape_.attention(block),
                                        .qkv = of_heads,
                                        .dropout = attention_dropout(pass, attention_site(block)),
                                        .out = out,
                                        .lse = kept[SiteId::kAttention].statistic,
                                        .workspace = activations_.workspace,
                                        .documents = attention_documents(pass),
                                        .keys_values = {},
                                        .maxima = maxima_of(block, pass),
                                        .sinks = with_own_sinks(block, kept).sinks});
  to_positions("what heads attended to", HeadRows::kQueries, out, kept[SiteId::kAttention].output);
}

void DealtHeads::attend_backward(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                                 const Tensor& d_attended_TD, const Tensor& d_qkv_TE) {
  const std::int64_t tokens = shape_.tokens(), heads_width = shape_.heads_width();
  const Tensor out = rows(activations_.deal_out, tokens, heads_width);
  const Tensor d_out = rows(activations_.deal_d_out, tokens, heads_width);
  const Tensor d_qkv = rows(activations_.deal_qkv, tokens, shape_.qkv_width());
  to_heads("what heads attended to, again", HeadRows::kQueries, kept[SiteId::kAttention].output,
           out);
  to_heads("gradient of what heads attended to", HeadRows::kQueries, d_attended_TD, d_out);
  kernels::attention_backward(compute_,
                              {.shape = shape_.attention(block),
                               .qkv = kept[SiteId::kQkv].output,
                               .out = out,
                               .lse = kept[SiteId::kAttention].statistic,
                               .dout = d_out,
                               .dropout = attention_dropout(pass, attention_site(block)),
                               .dqkv = d_qkv,
                               .workspace = activations_.workspace,
                               .documents = attention_documents(pass),
                               .dkv = rows(activations_.d_kv, tokens, shape_.kv_gradient_width()),
                               .keys_values = {}});
  to_positions("gradients of queries, keys and values", HeadRows::kQkv, d_qkv, d_qkv_TE);
  if (!kept.d_sinks) return;
  kernels::fill_zero(compute_, kept.d_sinks);  // other ranks' heads
  sinks_gradient(shape_.attention(block), with_own_sinks(block, kept), out, d_out);
}

// The columns of a matrix [tokens, heads] that a rank's heads have.
std::vector<kernels::Columns> DealtHeads::columns_of(HeadRows rows, int rank) const {
  const std::int64_t K = shape_.head_width(), parts = shape_.context.degree;
  std::vector<kernels::Columns> columns;
  const std::int64_t width = rows == HeadRows::kQkv ? shape_.qkv_width() : shape_.heads_width();
  std::int64_t first = 0;
  const auto add = [&](std::int64_t heads) {
    const std::int64_t own = heads / parts * K;
    columns.push_back({shape_.tokens(), width, first + rank * own, own});
    first += heads * K;
  };
  add(shape_.query_heads);
  if (rows == HeadRows::kQkv) {
    add(shape_.kv_heads);
    add(shape_.kv_heads);
  }
  return columns;
}

// Between [rank, sequence, its positions] and [sequence, all positions]; the same for one sequence.
void DealtHeads::reorder_sequences(const Tensor& from, const Tensor& to, bool by_rank) {
  const std::int64_t parts = shape_.context.degree, B = shape_.sequences;
  const std::int64_t piece = from.numel / (parts * B);
  for (std::int64_t rank = 0; rank < parts; ++rank) {
    for (std::int64_t b = 0; b < B; ++b) {
      const Tensor of_rank = (by_rank ? to : from).part((rank * B + b) * piece, piece);
      const Tensor of_sequence = (by_rank ? from : to).part((b * parts + rank) * piece, piece);
      const Tensor &source = by_rank ? of_sequence : of_rank,
                   &target = by_rank ? of_rank : of_sequence;
      compute_.copy(source.data, target.data, source.bytes());
    }
  }
}

void DealtHeads::to_heads(const char* what, HeadRows rows, const ConstTensor& own,
                          const Tensor& all) {
  const std::int64_t part = own.numel / shape_.context.degree;
  const Tensor send = activations_.deal_send.tensor().part(0, own.numel);
  for (int rank = 0; rank < shape_.context.degree; ++rank) {
    const Tensor theirs = send.part(rank * part, part);
    std::int64_t first = 0;
    for (const kernels::Columns& columns : columns_of(rows, rank)) {
      const kernels::Columns packed{columns.rows, part / columns.rows, first, columns.count};
      kernels::move_columns(compute_, columns, own, packed, theirs);
      first += columns.count;
    }
  }
  if (shape_.sequences == 1) return collectives_.all_to_all(what, send, all);
  const Tensor received = activations_.deal_received.tensor().part(0, own.numel);
  collectives_.all_to_all(what, send, received);
  reorder_sequences(received, all, false);
}

void DealtHeads::to_positions(const char* what, HeadRows rows, const Tensor& all,
                              const Tensor& own) {
  const std::int64_t part = own.numel / shape_.context.degree;
  const Tensor received = activations_.deal_received.tensor().part(0, own.numel);
  Tensor send = all;
  if (shape_.sequences > 1) {
    send = activations_.deal_send.tensor().part(0, own.numel);
    reorder_sequences(all, send, true);
  }
  collectives_.all_to_all(what, send, received);
  for (int rank = 0; rank < shape_.context.degree; ++rank) {
    std::int64_t first = 0;
    for (const kernels::Columns& columns : columns_of(rows, rank)) {
      const kernels::Columns packed{columns.rows, part / columns.rows, first, columns.count};
      kernels::move_columns(compute_, packed, received.part(rank * part, part), columns, own);
      first += columns.count;
    }
  }
}

}  // namespace

std::unique_ptr<Sequences> make_dealt_heads(Computation& computation) {
  return std::make_unique<DealtHeads>(computation);
}

}  // namespace sherd::model
