#include "engine/model/exchanges.h"

#include <algorithm>

#include "engine/model/activations.h"
#include "kernels/qk_norm.h"

namespace sherd::model {
namespace {

using Kind = Exchange::Kind;

class List {
 public:
  void add(Kind kind, const char* what, DType dtype, std::int64_t numel, std::int64_t calls) {
    if (calls > 0) list_.push_back({kind, what, dtype, numel, calls});
  }
  std::vector<Exchange> take() { return std::move(list_); }

 private:
  std::vector<Exchange> list_;
};

// Blocks that the backward computes again: all but the last, whose activations are still there.
std::int64_t blocks_again(const ModelShape& part, PassKind pass) {
  return pass == PassKind::kTraining && part.recompute == Recompute::kFull ? part.num_layers - 1
                                                                           : 0;
}

void add_blocks(const ModelShape& part, DType gradients, PassKind pass, List& list) {
  const std::int64_t L = part.num_layers, T = part.tokens(), again = blocks_again(part, pass);
  const bool trains = pass == PassKind::kTraining;
  // What is computed again ends before the block's output, which nobody reads then.
  const int sums_again = (part.parallel() ? 0 : 1) + (part.norm_behind() ? 1 : 0);
  list.add(Kind::kSum, "branch", part.dtype, T * part.width, 2 * L + again * sums_again);
  if (part.cuts_normalised_rows()) {
    const int statistics = part.norm == kernels::NormKind::kLayerNorm ? 2 : 1;
    list.add(Kind::kSum, "norms of queries and keys", DType::kF32, 2 * T, statistics * (L + again));
  }
  if (!trains) return;
  const int inputs = part.block_form == BlockForm::kParallelOneNorm ? 1 : 2;
  list.add(Kind::kSum, "gradient of what a branch read", part.dtype, T * part.width, inputs * L);
  if (part.shares_kv_heads()) {
    list.add(Kind::kSumCopies, "gradients of keys and values", DType::kF32,
             T * part.kv_gradient_width(), L);
  }
  if (part.cuts_normalised_rows()) {
    list.add(Kind::kSum, "gradients of rows of queries and keys", DType::kF32, 4 * T, L);
  }
  if (part.qk_norm == QkNorm::kHead) {
    list.add(Kind::kSum, "gradient of the query norm", gradients, part.head_width(), L);
    list.add(Kind::kSum, "gradient of the key norm", gradients, part.head_width(), L);
  }
}

void add_head(const ModelShape& part, DeviceKind device, PassKind pass, List& list) {
  const std::int64_t T = part.tokens(), chunk = logits_chunk_tokens(part, device);
  for (const auto& [tokens, calls] : {std::pair(chunk, T / chunk), {T % chunk, T % chunk > 0}}) {
    list.add(Kind::kGather, "largest logits", DType::kF32, part.part.degree * tokens, calls);
    list.add(Kind::kSum, "sums of the loss", DType::kF32, 2 * tokens, calls);
  }
  if (pass == PassKind::kTraining) {
    list.add(Kind::kSum, "gradient of the head's input", part.dtype, T * part.width, 1);
  }
}

}  // namespace

std::vector<Exchange> exchanges(const ModelShape& part, DeviceKind device, DType gradients,
                                PassKind pass) {
  List list;
  if (part.part.is_cut()) {
    list.add(Kind::kSum, "embedding", part.dtype, part.tokens() * part.width, 1);
    add_blocks(part, gradients, pass, list);
    add_head(part, device, pass, list);
  }
  return list.take();
}

}  // namespace sherd::model
