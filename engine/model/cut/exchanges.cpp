#include "engine/model/cut/exchanges.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/model/activations.h"
#include "engine/model/adapter.h"
#include "engine/model/cut/sequence_cut.h"
#include "engine/model/sites.h"
#include "kernels/experts.h"
#include "kernels/qk_norm.h"
#include "kernels/token_groups.h"

namespace sherd::model {
namespace {

using Kind = Exchange::Kind;

class List {
 public:
  void add(Kind kind, const std::string& what, DType dtype, std::int64_t numel,
           std::int64_t calls) {
    if (calls > 0) list_.push_back({kind, what, dtype, numel, calls});
  }
  /// A sum of [tokens, width] after a matrix whose inputs are cut: all of it, or with sequence
  /// parallelism each rank's rows.
  void add_sum_of_rows(const ModelShape& part, const char* what, DType dtype, std::int64_t calls) {
    if (!part.sequence_parallel()) {
      return add(Kind::kSum, what, dtype, part.tokens() * part.width, calls);
    }
    add(Kind::kReduceScatter, what, dtype, all_rows(part), calls);
  }
  /// With sequence parallelism, the rows of all tokens.
  void add_rows(const ModelShape& part, const char* what, std::int64_t calls) {
    if (part.sequence_parallel()) add(Kind::kGather, what, part.dtype, all_rows(part), calls);
  }
  /// The gradients of trained norms' weights, and of their biases, each from a rank's tokens.
  void add_norms(const ModelShape& part, DType gradients, std::int64_t norms) {
    if (!part.sequence_parallel()) return;
    add(Kind::kSum, "gradient of a norm", gradients, part.width,
        norms * (part.norm_bias() ? 2 : 1));
  }
  std::vector<Exchange> take() { return std::move(list_); }

 private:
  static std::int64_t all_rows(const ModelShape& part) {
    return part.part.degree * part.residual_tokens() * part.width;
  }
  std::vector<Exchange> list_;
};

// Backwards of blocks that go on to the attention, and to the block's input: if parameters are
// frozen, the lowest block has perhaps nothing to train there, and those below have no backward.
struct Backwards {
  Backwards(const ModelShape& part, const PassCounts& counts) {
    const std::int64_t lowest = lowest_trained_block(part);
    for (std::int64_t block = lowest; block < part.num_blocks(); ++block) {
      const std::int64_t passes = counts.of_block[static_cast<std::size_t>(block)];
      const BackwardReach reach = block == lowest ? backward_reach(part, block) : BackwardReach{};
      attentions += reach.attention ? passes : 0;
      inputs += reach.input ? passes : 0;
      mlps += part.has_mlp(block) ? passes : 0;
      mlp_inputs += part.has_mlp(block) && reach.attention ? passes : 0;
      mixtures += part.has_experts(block) ? passes : 0;
    }
  }
  std::int64_t attentions = 0, inputs = 0;
  std::int64_t mlps = 0, mlp_inputs = 0, mixtures = 0;
};

// Backwards of sites that `counts_site` counts and that are trained, in all blocks.
template <class CountsSite>
std::int64_t trained_passes(const ModelShape& part, const PassCounts& counts,
                            const CountsSite& counts_site) {
  std::int64_t passes = 0;
  for (std::int64_t block = 0; block < part.num_blocks(); ++block) {
    for (const Site& site : block_sites(part, block)) {
      if (!counts_site(site)) continue;
      if (!is_trained(part, fmt::format("block.{}.{}.weight", block, site.name))) continue;
      passes += counts.of_block[static_cast<std::size_t>(block)];
    }
  }
  return passes;
}

void add_blocks(const ModelShape& part, DType gradients, PassKind pass, const PassCounts& counts,
                List& list) {
  const std::int64_t L = counts.blocks, T = part.tokens(), again = counts.blocks_again;
  const bool trains = pass == PassKind::kTraining;
  // What is computed again ends before the block's output, which nobody reads then.
  const int last_sum_again = part.norm_after() ? 1 : 0;
  const std::int64_t sums_again =
      again * last_sum_again + counts.mlps_again * (part.parallel() ? 0 : 1);
  const DType summed = part.part.has_canonical_sums() ? DType::kF32 : part.dtype;
  const bool one_norm = part.block_form == BlockForm::kParallelOneNorm;
  const std::int64_t mlp_reads = one_norm ? 0 : counts.mlps + counts.mlps_again;
  list.add_rows(part, "what a branch reads", L + again + mlp_reads);
  list.add_sum_of_rows(part, "branch", summed, L + counts.mlps + sums_again);
  if (part.cuts_normalised_rows()) {
    const int statistics = part.norm == kernels::NormKind::kLayerNorm ? 2 : 1;
    list.add(Kind::kSum, "norms of queries and keys", DType::kF32, 2 * T, statistics * (L + again));
  }
  if (!trains) return;
  // Canonical sums are complete before anything is added to them.
  const bool together = one_norm && !part.part.has_canonical_sums();
  const Backwards backwards(part, counts);
  const std::int64_t attentions = backwards.attentions;
  list.add_rows(part, "gradient of a branch", backwards.mlps + attentions);
  // Halves of a backward both read what routers read.
  list.add_rows(part, "what a branch read", backwards.mlps + attentions + counts.mixtures_apart);
  const bool expands_again = part.latent.active() && part.latent.query_rank == 0 &&
                             part.recompute == Recompute::kSelective && !part.context.is_cut();
  if (expands_again) list.add_rows(part, "what a branch read", attentions);
  list.add_sum_of_rows(part, "gradient of what a branch read", summed,
                       backwards.inputs + (together ? 0 : backwards.mlp_inputs));
  list.add_norms(part, gradients, trained_passes(part, counts, [](const Site& site) {
                   return site.weight == Site::Weight::kNorm && site.on_residual;
                 }));
  if (part.shares_kv_heads()) {
    list.add(Kind::kSumCopies, "gradients of keys and values", DType::kF32,
             T * part.kv_gradient_width(), attentions);
  }
  if (part.cuts_normalised_rows()) {
    list.add(Kind::kSum, "gradients of rows of queries and keys", DType::kF32, 4 * T, attentions);
  }
  for (const SiteId norm : {SiteId::kQueryNorm, SiteId::kKeyNorm}) {
    if (!part.has_norm_of_heads()) continue;
    const kernels::TokenGroups groups = part.token_groups();
    list.add(Kind::kSum,
             norm == SiteId::kQueryNorm ? "gradient of the query norm" : "gradient of the key norm",
             groups ? DType::kF32 : gradients, std::max(1, groups.groups) * part.head_width(),
             trained_passes(part, counts, [norm](const Site& site) { return site.id == norm; }));
  }
  for (const Site& site : part.latent.active() ? largest_sites(part) : std::vector<Site>{}) {
    if (!leads_to_latents(site.id)) continue;
    list.add(Kind::kSum, "gradient of latents", gradients,
             site.rows * std::max<std::int64_t>(1, site.columns),
             trained_passes(part, counts, [&](const Site& each) { return each.id == site.id; }));
  }
  if (part.moe.active()) {
    list.add(Kind::kSum, "gradients of routing weights", DType::kF32, T * part.moe.per_token,
             backwards.mixtures);
    if (part.moe.shared_gate) {
      list.add(Kind::kSum, "gradients of gates", DType::kF32, T, backwards.mixtures);
    }
  }
  for (std::int64_t block = 0; block < part.num_blocks(); ++block) {
    for (const AdapterTarget& target : adapter_targets(part, block)) {
      const auto add = [&](std::int64_t width) {
        list.add(Kind::kSum, "gradient of an adapter", gradients, part.adapter.rank * width,
                 counts.of_block[static_cast<std::size_t>(block)]);
      };
      if (!target.cuts_inputs()) add(target.inputs);
      if (!target.cuts_rows()) add(target.rows);
    }
  }
}

void add_gathered_keys(const ModelShape& part, PassKind pass, const PassCounts& counts,
                       List& list) {
  const std::int64_t numel = part.whole_seq_length() * part.kv_gradient_width();
  const auto add = [&](Kind kind, const char* what, DType dtype, std::int64_t passes) {
    list.add(kind, what, dtype, numel, part.sequences * passes);
  };
  add(Kind::kGatherPositions, "keys and values", part.dtype, counts.blocks + counts.blocks_again);
  if (pass != PassKind::kTraining) return;
  const std::int64_t backwards = Backwards(part, counts).attentions;
  add(Kind::kGatherPositions, "keys and values, again", part.dtype, backwards);
  add(Kind::kReduceScatterPositions, "gradients of all keys and values", DType::kF32,
      part.gathered_key_sums() * backwards);
}

void add_passed_keys(const ModelShape& part, PassKind pass, const PassCounts& counts, List& list) {
  const std::int64_t numel = part.tokens() * part.kv_gradient_width();
  const std::int64_t steps = part.context.degree - 1;
  const auto add = [&](const char* what, DType dtype, std::int64_t passes) {
    list.add(Kind::kPassOn, what, dtype, numel, steps * passes);
  };
  add("keys and values", part.dtype, counts.blocks + counts.blocks_again);
  if (pass != PassKind::kTraining) return;
  const std::int64_t backwards = Backwards(part, counts).attentions;
  add("keys and values, again", part.dtype, backwards);
  add("gradients of passed keys and values", DType::kF32, backwards);
}

void add_attention(const ModelShape& part, PassKind pass, const PassCounts& counts, List& list) {
  const std::int64_t T = part.tokens(), forwards = counts.blocks + counts.blocks_again;
  const auto add = [&](const char* what, std::int64_t width, std::int64_t calls) {
    list.add(Kind::kAllToAll, what, part.dtype, T * width, calls);
  };
  add("queries, keys and values", part.qkv_width(), forwards);
  add("what heads attended to", part.heads_width(), forwards);
  if (pass != PassKind::kTraining) return;
  const std::int64_t backwards = Backwards(part, counts).attentions;
  add("what heads attended to, again", part.heads_width(), backwards);
  add("gradient of what heads attended to", part.heads_width(), backwards);
  add("gradients of queries, keys and values", part.qkv_width(), backwards);
}

// With as many rows for each owner.
void add_experts(const ModelShape& part, PassKind pass, const PassCounts& counts, List& list) {
  const kernels::ExpertsShape owned = part.owned_experts();
  const std::int64_t T = part.tokens(), k = part.moe.per_token, rows = T * k;
  const std::int64_t rounds = (rows + owned.buffer_rows - 1) / owned.buffer_rows;
  const std::int64_t forwards = counts.mixtures + counts.mixtures_again;
  list.add(Kind::kGatherCounts, "counts of experts", DType::kI32,
           part.expert.degree * part.moe.experts, counts.mixtures);
  const auto add = [&](const char* what, DType dtype, std::int64_t width, std::int64_t passes) {
    // All rows in one call, and the others' calls.
    list.add(Kind::kExchangeRows, what, dtype, rows * width, passes);
    list.add(Kind::kExchangeRows, what, dtype, 0, (rounds - 1) * passes);
  };
  add("rows for experts", part.dtype, part.width, forwards);
  add("rows from experts", part.dtype, part.width, forwards);
  if (pass != PassKind::kTraining) return;
  const std::int64_t mixtures = Backwards(part, counts).mixtures;
  const std::int64_t backwards = mixtures + counts.mixtures_apart;
  add("rows for experts, again", part.dtype, part.width, backwards);
  add("gradients for experts", part.dtype, part.width, backwards);
  if (!part.moe.weighs_input) {
    add("weights for experts", DType::kF32, 1, backwards);
    add("gradients of weights", DType::kF32, 1, backwards);
  }
  add("gradients from experts", part.dtype, part.width,
      part.moe.weighs_input ? backwards : mixtures);
}

void add_head(const ModelShape& part, DeviceKind device, DType gradients, PassKind pass,
              std::int64_t heads, List& list) {
  list.add_rows(part, "what the head reads", heads);
  const std::int64_t T = part.tokens(), chunks = logits_chunks_of_groups(part);
  // Chunks of groups have a part of each sequence, which is what an exchange is of.
  const std::int64_t chunk = pass == PassKind::kTraining && chunks > 1
                                 ? part.seq_length / chunks
                                 : logits_chunk_tokens(part, device);
  for (const auto& [tokens, calls] : {std::pair(chunk, T / chunk), {T % chunk, T % chunk > 0}}) {
    list.add(Kind::kGather, "largest logits", DType::kF32, part.part.degree * tokens,
             heads * calls);
    list.add(Kind::kSum, "sums of the loss", DType::kF32,
             (pass == PassKind::kTraining && part.teacher ? 4 : 2) * tokens, heads * calls);
  }
  if (pass == PassKind::kTraining) {
    const DType summed = part.part.has_canonical_sums() ? DType::kF32 : part.dtype;
    list.add_sum_of_rows(part, "gradient of the head's input", summed, heads);
    list.add_norms(part, gradients, is_trained(part, "final_norm.weight") ? heads : 0);
  }
}

}  // namespace

PassCounts one_pass(const ModelShape& shape, PassKind pass) {
  const bool trains = pass == PassKind::kTraining;
  const bool makes_again = trains && shape.recompute == Recompute::kFull;
  const std::int64_t first = lowest_trained_block(shape);
  // An evaluation has no multi-token prediction.
  const std::int64_t blocks = trains ? shape.num_blocks() : shape.num_layers;
  const std::int64_t again = makes_again ? std::max<std::int64_t>(0, blocks - 1 - first) : 0;
  return {.embeddings = 1,
          .heads = 1,
          .blocks = blocks,
          .blocks_again = again,
          .mlps = shape.num_mlps(0, blocks),
          .mlps_again = shape.num_mlps(first, again),
          .mixtures = shape.num_mixtures(0, blocks),
          .mixtures_again = shape.norm_after() ? shape.num_mixtures(first, again) : 0,
          .of_block = std::vector<std::int64_t>(static_cast<std::size_t>(shape.num_blocks()), 1)};
}

std::vector<Exchange> exchanges(const ModelShape& part, DeviceKind device, DType gradients,
                                PassKind pass, const PassCounts& counts) {
  List list;
  if (part.part.is_cut()) {
    list.add_sum_of_rows(part, "embedding", part.dtype, counts.embeddings);
    if (pass == PassKind::kTraining && trains_embedding(part)) {
      list.add_rows(part, "gradient of the embedding", counts.embeddings);
    }
    add_blocks(part, gradients, pass, counts, list);
    if (counts.heads > 0) add_head(part, device, gradients, pass, counts.heads, list);
  }
  if (part.context.deals_heads()) add_attention(part, pass, counts, list);
  if (part.context.gathers_keys()) add_gathered_keys(part, pass, counts, list);
  if (part.context.passes_keys()) add_passed_keys(part, pass, counts, list);
  if (counts_sequences_together(part)) {
    list.add(Kind::kGatherPositions, "counts of experts in sequences", DType::kI32,
             part.context.degree * part.sequences * part.moe.experts, counts.mixtures);
  }
  if (part.expert.is_cut()) add_experts(part, pass, counts, list);
  return list.take();
}

std::vector<Exchange> exchanges(const ModelShape& part, DeviceKind device, DType gradients,
                                PassKind pass) {
  return exchanges(part, device, gradients, pass, one_pass(part, pass));
}

}  // namespace sherd::model
