// Of sequences that are cut over context ranks: who has what, and how positions become heads and back.
#include "engine/model/sequence_cut.h"

#include "core/error.h"
#include "engine/model/tensor_cut.h"
#include "engine/model/transformer.h"
#include "kernels/columns.h"

namespace sherd::model {
namespace {

// Tensor ranks with sequence parallelism have a part of a context rank's positions each.
int shares_of_tokens(const ModelShape& whole) {
  return whole.sequence_parallel() ? whole.part.degree : 1;
}

bool divides(int degree, const ModelShape& whole) {
  const bool deals = whole.context.method == ContextMethod::kUlysses;
  const bool in_halves = whole.context.method == ContextMethod::kRing && degree > 1;
  if (whole.part.has_canonical_sums() && kSumGroups % (degree * shares_of_tokens(whole)) != 0) {
    return false;
  }
  return whole.seq_length % (in_halves ? 2 * degree : degree) == 0 &&
         (!deals || (whole.query_heads % degree == 0 && whole.kv_heads % degree == 0));
}

}  // namespace

ModelShape context_part(const ModelShape& whole, int degree, int rank) {
  CHECK(degree >= 1 && rank >= 0 && rank < degree && !whole.context.is_cut(),
        "context rank {} of {}", rank, degree);
  if (degree == 1) return whole;
  if (whole.part.has_canonical_sums() && whole.context.method == ContextMethod::kRing) {
    throw UsageError(
        "a ring of context ranks merges what queries attend to in an order of its own, so its sums "
        "can't be canonical. Use the method all_gather or ulysses, or sum_order: rank.");
  }
  check_sequence_groups(whole);
  if (!divides(degree, whole)) {
    int nearest = degree - 1;
    while (!divides(nearest, whole)) --nearest;
    if (whole.part.has_canonical_sums() && kSumGroups % (degree * shares_of_tokens(whole)) != 0) {
      throw UsageError(
          "{} context ranks can't share sequences with canonical sums: there are {} groups of "
          "tokens{}. {} would do.",
          degree, kSumGroups,
          whole.sequence_parallel() ? ", which tensor ranks with sequence parallelism share, too"
                                    : "",
          nearest);
    }
    if (whole.context.method == ContextMethod::kAllGather) {
      throw UsageError(
          "{} context ranks can't share sequences of {} tokens: the number must divide that. {} "
          "would do.",
          degree, whole.seq_length, nearest);
    }
    if (whole.context.method == ContextMethod::kRing) {
      throw UsageError(
          "{} context ranks can't share sequences of {} tokens in a ring: twice the number must "
          "divide that. {} would do, or sequences of {} tokens.",
          degree, whole.seq_length, nearest,
          (whole.seq_length + 2 * degree - 1) / (2 * degree) * (2 * degree));
    }
    throw UsageError(
        "{} context ranks can't share sequences of {} tokens and {} query heads on {} key/value "
        "heads: the number must divide all three. {} would do, or the method all_gather, "
        "for which it must divide the tokens alone.",
        degree, whole.seq_length, whole.query_heads, whole.kv_heads, nearest);
  }
  ModelShape own = whole;
  own.seq_length = whole.seq_length / degree;
  own.context = {degree, rank, whole.context.method};
  return own;
}

// With `ulysses` attention has other tokens than those whose positions a rank knows, and needs none.
kernels::Documents Transformer::attention_documents(const Pass& pass) const {
  kernels::Documents documents = pass.documents;
  if (shape_.context.is_cut()) documents.positions = {};
  return documents;
}

// The columns of a matrix [tokens, heads] that a rank's heads have.
std::vector<kernels::Columns> Transformer::columns_of(HeadRows rows, int rank) const {
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
void Transformer::reorder_sequences(const Tensor& from, const Tensor& to, bool by_rank) {
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

void Transformer::to_heads(const char* what, HeadRows rows, const ConstTensor& own,
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

void Transformer::to_positions(const char* what, HeadRows rows, const Tensor& all,
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

}  // namespace sherd::model
