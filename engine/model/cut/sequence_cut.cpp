#include "engine/model/cut/sequence_cut.h"

#include "core/error.h"
#include "engine/model/cut/tensor_cut.h"

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
  SHERD_CHECK(degree >= 1 && rank >= 0 && rank < degree && !whole.context.is_cut(),
              "context rank {} of {}", rank, degree);
  if (degree == 1) return whole;
  if (whole.part.has_canonical_sums() && whole.context.method == ContextMethod::kRing) {
    throw UsageError(
        "a ring of context ranks merges attention results in its own order, so its sums can't be "
        "canonical. Use the method all_gather or ulysses, or sum_order: rank.");
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

bool counts_sequences_together(const ModelShape& part) {
  return part.context.is_cut() && part.moe.active() && (part.moe.balance > 0.0 || part.moe.z > 0.0);
}

}  // namespace sherd::model
