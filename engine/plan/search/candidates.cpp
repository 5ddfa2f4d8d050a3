#include "engine/plan/search/candidates.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace sherd::engine {
namespace {

struct Name {
  SearchKey key;
  std::string_view name;
};
constexpr std::array kNames = {
    Name{SearchKey::kTensor, "parallelism.tensor_parallel_degree"},
    Name{SearchKey::kSequenceParallel, "parallelism.sequence_parallel"},
    Name{SearchKey::kContext, "parallelism.context_parallel_degree"},
    Name{SearchKey::kPipeline, "parallelism.pipeline_parallel_degree"},
    Name{SearchKey::kSchedule, "parallelism.pipeline_schedule"},
    Name{SearchKey::kChunks, "parallelism.pipeline_chunks_per_rank"},
    Name{SearchKey::kShard, "parallelism.data_parallel_shard_degree"},
    Name{SearchKey::kReplicate, "parallelism.data_parallel_replicate_degree"},
    Name{SearchKey::kExpert, "parallelism.expert_parallel_degree"},
    Name{SearchKey::kStage, "zero_optimization.stage"},
    Name{SearchKey::kGradSync, "zero_optimization.grad_sync"},
    Name{SearchKey::kReshard, "zero_optimization.reshard_after_forward"},
    Name{SearchKey::kPrefetchDepth, "zero_optimization.prefetch_depth"},
    Name{SearchKey::kMicroBatch, "training.micro_batch_size"},
    Name{SearchKey::kRecompute, "activation_checkpointing.mode"},
    Name{SearchKey::kOffloadOptimizer, "zero_optimization.offload_optimizer"},
    Name{SearchKey::kOffloadUpdate, "zero_optimization.offload_update"},
};

// Micro-batches of more sequences make no matmul faster, and need more memory.
constexpr std::int64_t kMostSequences = 64;
constexpr std::int64_t kMostContextRanks = 64;

std::vector<std::int64_t> divisors(std::int64_t number, std::int64_t most) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 1; i <= std::min(number, most); ++i) {
    if (number % i == 0) all.push_back(i);
  }
  return all;
}

struct Turns {
  schedule::Order order;
  std::int64_t chunks;
};

// One loop after the other; each function fills its part of `layout` and calls the next.
class Enumeration {
 public:
  Enumeration(const SearchSpace& space, const std::function<void(const Layout&)>& visit)
      : space_(space), own_(space.own.layout), visit_(visit) {}

  void run() {
    layout_ = own_;
    const ModelSize& model = space_.own.model;
    for (const std::int64_t t : degrees(SearchKey::kTensor, own_.tensor, space_.ranks,
                                        std::min<std::int64_t>(space_.per_machine, 64))) {
      const bool experts_divide = model.expert_width % t == 0 && model.shared_width % t == 0;
      const bool dense_divide = model.mixtures == model.layers || model.ffn_width % t == 0;
      const bool divides = model.query_heads % t == 0 && dense_divide && experts_divide &&
                           (model.kv_heads % t == 0 || t % model.kv_heads == 0);
      if (t > 1 && !divides) continue;
      layout_.tensor = t;
      for (const std::int64_t c :
           degrees(SearchKey::kContext, own_.context, space_.ranks / t, kMostContextRanks)) {
        // In a ring, each rank has two runs of positions.
        const bool ring = layout_.context_method == model::ContextMethod::kRing;
        if (c > 1 && space_.own.seq_length % (ring ? 2 * c : c) != 0) continue;
        if (c > 1 && layout_.context_method == model::ContextMethod::kUlysses &&
            model.query_heads / t % c != 0) {
          continue;
        }
        layout_.context = c;
        pipelines();
      }
    }
  }

 private:
  // The recipe's value if it is kept and fits; else what divides `ranks`.
  std::vector<std::int64_t> degrees(SearchKey key, std::int64_t own, std::int64_t ranks,
                                    std::int64_t most) const {
    if (!space_.keeps(key)) return divisors(ranks, most);
    if (ranks % own != 0) return {};
    return {own};
  }
  template <class Value>
  std::vector<Value> choices(SearchKey key, Value own, std::vector<Value> others) const {
    return space_.keeps(key) ? std::vector{own} : others;
  }

  void pipelines() {
    const std::int64_t left = space_.ranks / layout_.tensor / layout_.context;
    for (const std::int64_t p :
         degrees(SearchKey::kPipeline, own_.pipeline, left, space_.own.model.layers)) {
      layout_.pipeline = p;
      for (const Turns& turns : orders(p)) {
        layout_.order = turns.order;
        layout_.chunks = turns.chunks;
        replicas(left / p);
      }
    }
  }

  std::vector<Turns> orders(std::int64_t p) const {
    using schedule::Order;
    if (p == 1) return {{own_.order, 1}};
    std::vector<Turns> all;
    for (const Turns& turns :
         {Turns{Order::k1F1B, 1}, Turns{Order::kInterleaved1F1B, 2},
          Turns{Order::kInterleaved1F1B, 4}, Turns{Order::kInterleaved1F1B, 8},
          Turns{Order::kZbH1, 1}, Turns{Order::kZbV, 2}, Turns{own_.order, own_.chunks}}) {
      const bool is_own = turns.order == own_.order && turns.chunks == own_.chunks;
      if (space_.keeps(SearchKey::kSchedule) && turns.order != own_.order) continue;
      if (space_.keeps(SearchKey::kChunks) && turns.chunks != own_.chunks) continue;
      if (p * turns.chunks > space_.own.model.layers) continue;
      const bool known = std::ranges::any_of(all, [&](const Turns& other) {
        return other.order == turns.order && other.chunks == turns.chunks;
      });
      if (!known && (is_own || turns.order != Order::kLayerParallel)) all.push_back(turns);
    }
    return all;
  }

  // All data ranks share state, or those of one machine do.
  void replicas(std::int64_t data_ranks) {
    if (space_.global_batch % data_ranks != 0) return;
    std::set<std::int64_t> shards = {data_ranks};
    const std::int64_t here = space_.per_machine / (layout_.tensor * layout_.context);
    if (here > 1 && here < data_ranks && data_ranks % here == 0) shards.insert(here);
    // Of replicas that train apart, another number trains another model.
    const bool keeps_replicas = space_.keeps(SearchKey::kReplicate) || own_.sync_every > 0;
    if (keeps_replicas && data_ranks % own_.replicate == 0) {
      shards = {data_ranks / own_.replicate};
    }
    if (space_.keeps(SearchKey::kShard)) shards = {own_.shard};
    for (const std::int64_t shard : shards) {
      if (data_ranks % shard != 0) continue;
      if (keeps_replicas && data_ranks / shard != own_.replicate) continue;
      layout_.shard = shard;
      layout_.replicate = data_ranks / shard;
      const std::int64_t experts =
          std::gcd(std::max<std::int64_t>(space_.own.model.experts, 1), shard);
      for (const std::int64_t e : degrees(SearchKey::kExpert, own_.expert, experts, experts)) {
        layout_.expert = e;
        micro_batches();
      }
    }
  }

  void micro_batches() {
    const std::int64_t rows = space_.global_batch / (layout_.shard * layout_.replicate);
    for (const std::int64_t b :
         choices(SearchKey::kMicroBatch, own_.sequences, divisors(rows, kMostSequences))) {
      if (rows % b != 0) continue;
      layout_.sequences = b;
      layout_.micro_batches = rows / b;
      if (layout_.order == schedule::Order::kInterleaved1F1B && layout_.pipeline > 1 &&
          layout_.micro_batches % layout_.pipeline != 0) {
        continue;
      }
      stages();
    }
  }

  void stages() {
    const bool alone = layout_.shard * layout_.context == 1;
    const std::vector<int> all = alone ? std::vector{own_.stage} : std::vector{0, 1, 2, 3};
    for (const int stage : choices(SearchKey::kStage, own_.stage, all)) {
      layout_.stage = stage;
      // Boundaries save nothing in memory at stage 2, and micro-steps nothing at all below it; but
      // a recipe with groups of the batch needs these.
      std::vector<bool> syncs = {stage >= 2};
      if (stage < 2 && own_.reduces_every_micro_step) syncs = {false, true};
      if (stage == 3 && layout_.micro_batches > 1 && !alone) syncs = {true, false};
      if (alone) syncs = {own_.reduces_every_micro_step};
      if (layout_.expert > 1) syncs = {true};
      for (const bool every : choices(SearchKey::kGradSync, own_.reduces_every_micro_step, syncs)) {
        layout_.reduces_every_micro_step = every;
        const std::vector<bool> reshards =
            stage == 3 ? std::vector{true, false} : std::vector{false};
        for (const bool reshard : choices(SearchKey::kReshard, own_.reshards, reshards)) {
          layout_.reshards = reshard && stage == 3;
          recompute();
        }
      }
    }
  }

  void recompute() {
    if (!space_.keeps(SearchKey::kPrefetchDepth) && layout_.stage == 3) {
      layout_.prefetch_depth = std::max<std::int64_t>(1, own_.prefetch_depth);
    } else {
      layout_.prefetch_depth = own_.prefetch_depth;
    }
    for (const Again again :
         choices(SearchKey::kRecompute, own_.again,
                 {Again::kNothing, Again::kNormsAndActivations, Again::kBlocks})) {
      layout_.again = again;
      const std::vector<bool> sequence =
          layout_.tensor > 1 ? std::vector{true, false} : std::vector{own_.sequence_parallel};
      for (const bool parallel :
           choices(SearchKey::kSequenceParallel, own_.sequence_parallel, sequence)) {
        layout_.sequence_parallel = parallel && layout_.tensor > 1;
        visit_(layout_);
      }
    }
  }

  const SearchSpace& space_;
  const Layout& own_;
  const std::function<void(const Layout&)>& visit_;
  Layout layout_;
};

// Of a layer and token, in elements of the compute type, that a backward needs: those of recompute
// are inputs of blocks alone. Half of what is usually kept, to be certain that it is a lower bound.
double kept_elements(const StepShape& step) {
  const ModelSize& model = step.model;
  const auto t = static_cast<double>(step.layout.tensor), d = static_cast<double>(model.width);
  const double stream = d / (step.layout.sequence_parallel ? t : 1.0);
  if (step.layout.again == Again::kBlocks) return stream;
  const double heads = static_cast<double>(model.qkv_width()) / t;
  const double up = model.mixtures > 0 ? 0.0 : static_cast<double>(model.up_width(model.ffn_width));
  return 0.5 * (2.0 * stream + heads + up / t);
}

// Layers whose activations are held at a time: of the first rank of a pipeline, or the mean of all.
double layers_in_flight(const StepShape& step, bool shares_memory) {
  const Layout& layout = step.layout;
  const auto p = static_cast<double>(layout.pipeline);
  double micro_batches = 0.0;
  for (std::int64_t rank = 0; rank < (shares_memory ? layout.pipeline : 1); ++rank) {
    const bool one = layout.order == schedule::Order::kLayerParallel;
    micro_batches +=
        static_cast<double>(one ? 1 : std::min(layout.micro_batches, layout.pipeline - rank));
  }
  if (shares_memory) micro_batches /= p;
  return micro_batches * static_cast<double>(step.model.layers) / p;
}

}  // namespace

std::string_view key_of(SearchKey key) {
  return kNames[static_cast<std::size_t>(key)].name;
}

const std::vector<SearchKey>& all_search_keys() {
  static const std::vector<SearchKey> keys = [] {
    std::vector<SearchKey> made;
    for (const Name& name : kNames) made.push_back(name.key);
    return made;
  }();
  return keys;
}

void for_each_layout(const SearchSpace& space, const std::function<void(const Layout&)>& visit) {
  Enumeration(space, visit).run();
}

double least_bytes(const StepShape& step, bool state_on_disk, bool shares_memory) {
  const Layout& layout = step.layout;
  const ModelSize& model = step.model;
  const auto element = static_cast<double>(size_of(step.dtype));
  const double parts = static_cast<double>(layout.tensor * layout.pipeline);
  const double spread = static_cast<double>(layout.shard * layout.context);
  const auto expert = static_cast<double>(layout.expert);
  const double dense =
      (static_cast<double>(model.layers) * model.attention_weights() +
       static_cast<double>(model.layers - model.mixtures) * model.mlp_weights(model.ffn_width)) /
      parts;
  const double experts = static_cast<double>(model.mixtures * model.experts) *
                         model.mlp_weights(model.expert_width) / expert / parts;
  // Ranks with the same experts divide these.
  const double weights = dense + experts, slice = dense / spread + experts / (spread / expert);
  const double replicas =
      step.divides_over_replicas && layout.stage >= 1 ? static_cast<double>(layout.replicate) : 1.0;
  const double state = state_on_disk ? 0.0 : step.state_bytes / replicas;
  const double gradients = layout.stage >= 2 && layout.reduces_every_micro_step ? slice : weights;
  // At stage 3, nothing but FP32 weights is there between uses, or not even these.
  const bool none = layout.stage == 3 && (element < 4.0 || step.weights_away);
  const double bytes = (layout.stage == 3 ? slice : weights) * (none ? 0.0 : element) +
                       (layout.stage >= 1 ? slice : weights) * state +
                       step.gradient_bytes * gradients;
  const double tokens =
      static_cast<double>(layout.sequences * step.seq_length) / static_cast<double>(layout.context);
  return bytes + layers_in_flight(step, shares_memory) * tokens * kept_elements(step) * element;
}

}  // namespace sherd::engine
