#include "engine/recipe_suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "engine/recipe_fields.h"

namespace sherd::engine {
namespace {

// What nanoGPT, Hugging Face, DeepSpeed, Megatron-LM and torchtitan call these.
constexpr Synonym kKeySynonyms[] = {
    {"learning_rate", "optimizer.lr"},
    {"rate", "optimizer.lr"},
    {"max_lr", "optimizer.lr"},
    {"adam_eps", "optimizer.eps"},
    {"epsilon", "optimizer.eps"},
    {"beta", "optimizer.betas"},
    {"beta1", "optimizer.betas"},
    {"beta2", "optimizer.betas"},
    {"adam_beta1", "optimizer.betas"},
    {"adam_beta2", "optimizer.betas"},
    {"wd", "optimizer.weight_decay"},
    {"decay", "optimizer.weight_decay"},
    {"min_lr", "lr_scheduler.min_lr_ratio"},
    {"warmup", "lr_scheduler.warmup_steps"},
    {"warmup_iters", "lr_scheduler.warmup_steps"},
    {"warmup_num_steps", "lr_scheduler.warmup_steps"},
    {"lr_decay_iters", "lr_scheduler.decay_steps"},
    {"lr_decay_style", "lr_scheduler.type"},
    {"lr_scheduler_type", "lr_scheduler.type"},
    {"schedule", "lr_scheduler.type"},
    {"grad_clip", "gradient_clipping.max_norm"},
    {"clip_grad", "gradient_clipping.max_norm"},
    {"clip", "gradient_clipping.max_norm"},
    {"max_grad_norm", "gradient_clipping.max_norm"},
    {"batch_size", "training.global_batch_size"},
    {"train_batch_size", "training.global_batch_size"},
    {"train_micro_batch_size_per_gpu", "training.micro_batch_size"},
    {"per_device_train_batch_size", "training.micro_batch_size"},
    {"local_batch_size", "training.micro_batch_size"},
    {"micro_batch", "training.micro_batch_size"},
    {"accumulation_steps", "training.gradient_accumulation_steps"},
    {"grad_accum", "training.gradient_accumulation_steps"},
    {"steps", "training.max_steps"},
    {"num_steps", "training.max_steps"},
    {"train_steps", "training.max_steps"},
    {"train_iters", "training.max_steps"},
    {"max_iters", "training.max_steps"},
    {"iterations", "training.max_steps"},
    {"block_size", "training.seq_length"},
    {"seq_len", "training.seq_length"},
    {"sequence_length", "training.seq_length"},
    {"context_length", "training.seq_length"},
    {"eval_every", "training.eval_interval"},
    {"eval_steps", "training.eval_interval"},
    {"eval_iters", "training.eval_batches"},
    {"temperature", "training.sample_temperature"},
    {"top_k", "training.sample_top_k"},
    {"prompt", "training.sample_prompt"},
    {"n_layer", "model.num_layers"},
    {"n_layers", "model.num_layers"},
    {"layers", "model.num_layers"},
    {"depth", "model.num_layers"},
    {"num_hidden_layers", "model.num_layers"},
    {"n_embd", "model.hidden_size"},
    {"d_model", "model.hidden_size"},
    {"dim", "model.hidden_size"},
    {"width", "model.hidden_size"},
    {"embedding_size", "model.hidden_size"},
    {"n_head", "model.num_attention_heads"},
    {"n_heads", "model.num_attention_heads"},
    {"heads", "model.num_attention_heads"},
    {"num_heads", "model.num_attention_heads"},
    {"n_kv_heads", "model.num_kv_heads"},
    {"num_query_groups", "model.num_kv_heads"},
    {"num_key_value_heads", "model.num_kv_heads"},
    {"intermediate_size", "model.ffn_hidden_size"},
    {"ffn_dim", "model.ffn_hidden_size"},
    {"d_ff", "model.ffn_hidden_size"},
    {"vocab", "model.vocab_size"},
    {"max_position_embeddings", "model.max_seq_length"},
    {"max_seq_len", "model.max_seq_length"},
    {"n_positions", "model.max_seq_length"},
    {"position_embedding", "model.positions"},
    {"position_embedding_type", "model.positions"},
    {"normalization", "model.norm"},
    {"hidden_act", "model.activation"},
    {"tie_word_embeddings", "model.tie_embeddings"},
    {"weight_tying", "model.tie_embeddings"},
    {"hidden_dropout", "model.dropout"},
    {"rotary_base", "model.rope_theta"},
    {"layer_norm_eps", "model.norm_eps"},
    {"rms_norm_eps", "model.norm_eps"},
    {"initializer_range", "model.init_std"},
    {"dataset", "data.path"},
    {"data_path", "data.path"},
    {"file", "data.path"},
    {"ranks", "parallelism.data_parallel_shard_degree"},
    {"num_ranks", "parallelism.data_parallel_shard_degree"},
    {"world_size", "parallelism.data_parallel_shard_degree"},
    {"shard_degree", "parallelism.data_parallel_shard_degree"},
    {"replicate_degree", "parallelism.data_parallel_replicate_degree"},
    {"zero_stage", "zero_optimization.stage"},
    {"prefetch", "zero_optimization.prefetch_depth"},
    {"threads", "run.num_threads"},
    {"out_dir", "run.output_dir"},
    {"output", "run.output_dir"},
    {"dtype", "mixed_precision.param_dtype"},
    {"torch_dtype", "mixed_precision.param_dtype"},
    {"communication_data_type", "mixed_precision.reduce_dtype"},
    {"loss_scale", "loss_scaling.mode"},
    {"initial_loss_scale", "loss_scaling.initial_scale_power"},
    {"loss_scale_window", "loss_scaling.growth_interval"},
    {"min_loss_scale", "loss_scaling.min_scale"},
    {"gradient_checkpointing", "activation_checkpointing.mode"},
    {"recompute_granularity", "activation_checkpointing.mode"},
    {"log_every", "metrics.log_interval"},
    {"logging_steps", "metrics.log_interval"},
};

constexpr Synonym kBlockSynonyms[] = {
    {"trainer", "training"},       {"train", "training"},
    {"scheduler", "lr_scheduler"}, {"lr_schedule", "lr_scheduler"},
    {"zero", "zero_optimization"}, {"fsdp", "zero_optimization"},
    {"dataset", "data"},           {"parallel", "parallelism"},
    {"logging", "metrics"},        {"gradient_clip", "gradient_clipping"},
    {"architecture", "model"},     {"job", "run"},
    {"fp16", "mixed_precision"},   {"bf16", "mixed_precision"},
    {"amp", "mixed_precision"},    {"precision", "mixed_precision"},
    {"scaler", "loss_scaling"},    {"recompute", "activation_checkpointing"},
};

// What they call our choices. A word counts only where the choice is one.
struct ChoiceSynonym {
  std::string_view word;
  std::string_view choice;
};
constexpr ChoiceSynonym kChoiceSynonyms[] = {
    {"fp32", "f32"}, {"float32", "f32"}, {"float", "f32"},    {"single", "f32"},
    {"fp16", "f16"}, {"float16", "f16"}, {"half", "f16"},     {"bfloat16", "bf16"},
    {"off", "none"}, {"false", "none"},  {"true", "dynamic"},
};

char plain(char c) {
  return c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

bool is_near(int distance, std::string_view wrong) {
  return distance <= std::max(1, static_cast<int>(wrong.size()) / 3);
}

std::string_view synonym(std::span<const Synonym> table, std::string_view word) {
  for (const Synonym& entry : table) {
    if (edit_distance(entry.word, word) == 0) return entry.key;
  }
  return {};
}

/// In the order of trust: the same name in another block, another engine's word, a slip of the pen.
std::string_view suggested_key(std::string_view wrong) {
  const std::size_t dot = wrong.rfind('.');
  const std::string_view block = dot == std::string_view::npos ? "" : wrong.substr(0, dot);
  const std::string_view name = dot == std::string_view::npos ? wrong : wrong.substr(dot + 1);

  std::string_view best;
  int best_distance = 1 << 20;
  for (const Field& field : recipe_fields()) {
    if (edit_distance(field.name(), name) != 0) continue;
    const int distance = edit_distance(field.block(), block);
    if (distance < best_distance) best = field.key, best_distance = distance;
  }
  if (!best.empty()) return best;
  if (const std::string_view key = synonym(kKeySynonyms, name); !key.empty()) return key;

  for (const Field& field : recipe_fields()) {
    const int distance = edit_distance(field.name(), name);
    if (!is_near(distance, name)) continue;
    // Between equally near names, the one in the block that was written.
    const int rank = 2 * distance + (field.block() == block ? 0 : 1);
    if (rank < best_distance) best = field.key, best_distance = rank;
  }
  return best;
}

}  // namespace

std::string joined(const std::vector<std::string_view>& names, std::string_view between,
                   std::string_view before_last) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? before_last : between;
    out += names[i];
  }
  return out;
}

int edit_distance(std::string_view a, std::string_view b) {
  constexpr std::size_t kLongest = 64;
  if (a.size() > kLongest || b.size() > kLongest) return static_cast<int>(kLongest);
  using Row = std::array<int, kLongest + 1>;
  Row two_ago{}, previous{}, current{};
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int replaced = plain(a[i - 1]) == plain(b[j - 1]) ? 0 : 1;
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, previous[j - 1] + replaced});
      const bool swapped = i > 1 && j > 1 && plain(a[i - 1]) == plain(b[j - 2]) &&
                           plain(a[i - 2]) == plain(b[j - 1]);
      if (swapped) current[j] = std::min(current[j], two_ago[j - 2] + 1);
    }
    two_ago = previous;
    previous = current;
  }
  return previous[b.size()];
}

std::string_view nearest(std::string_view wrong, const std::vector<std::string_view>& names) {
  std::string_view best;
  int best_distance = 1 << 20;
  for (const std::string_view name : names) {
    const int distance = edit_distance(name, wrong);
    if (distance < best_distance && is_near(distance, wrong)) best = name, best_distance = distance;
  }
  return best;
}

std::string_view meant_choice(std::string_view wrong,
                              const std::vector<std::string_view>& choices) {
  for (const ChoiceSynonym& entry : kChoiceSynonyms) {
    if (edit_distance(entry.word, wrong) != 0) continue;
    const auto choice = std::find(choices.begin(), choices.end(), entry.choice);
    if (choice != choices.end()) return *choice;
  }
  return nearest(wrong, choices);
}

std::span<const Synonym> key_synonyms() {
  return kKeySynonyms;
}

std::string unknown_key(std::string_view wrong) {
  const std::string_view key = suggested_key(wrong);
  if (key.empty()) {
    return fmt::format("unknown key \"{}\"; `sherd recipe --help-fields` lists all keys.", wrong);
  }
  return fmt::format("unknown key \"{}\"; did you mean \"{}\"?", wrong, key);
}

std::string unknown_block(std::string_view wrong) {
  std::vector<std::string_view> names;
  for (const Block& block : recipe_blocks()) names.push_back(block.name);
  std::string_view meant = synonym(kBlockSynonyms, wrong);
  if (meant.empty()) meant = nearest(wrong, names);
  if (meant.empty()) {
    return fmt::format("unknown block \"{}\"; blocks are {}.", wrong, joined(names, ", ", " and "));
  }
  return fmt::format("unknown block \"{}\"; did you mean \"{}\"?", wrong, meant);
}

}  // namespace sherd::engine
