// Gemma 1 to 3: norms that multiply by 1 + weight, a scaled embedding, GELU gates.
#include <cmath>
#include <utility>

#include "engine/huggingface/families/common.h"
#include "engine/huggingface/families/families.h"

namespace sherd::huggingface {
namespace {

constexpr Module kFourNorms[] = {
    {"block.{}.attention.norm", "layers.{}.post_attention_layernorm"},
    {"block.{}.norm2", "layers.{}.pre_feedforward_layernorm"},
    {"block.{}.mlp.norm", "layers.{}.post_feedforward_layernorm"},
};
constexpr std::span<const Module> kModules[] = {kUsualModules, kSecondNorm};
constexpr std::span<const Module> kSandwichModules[] = {kUsualModules, kFourNorms};

constexpr Fixed kFixed[] = {
    {"model.norm", "rmsnorm"}, {"model.norm_offset", "1"}, {"model.activation", "geglu"}};
constexpr Fixed kSandwich[] = {{"model.norm", "rmsnorm"},
                               {"model.norm_offset", "1"},
                               {"model.norm_placement", "sandwich"},
                               {"model.activation", "geglu"}};
constexpr ConfigKey kNormAndHead[] = {
    {"rms_norm_eps", "model.norm_eps", "1e-06"},
    {"tie_word_embeddings", "model.tie_embeddings", "true"},
};
constexpr std::span<const ConfigKey> kKeys[] = {kUsualSizes, kNormAndHead};
// Where Gemma 3 is the text part of a larger model, files leave out what the class has.
constexpr ConfigKey kSizes3[] = {
    {"num_hidden_layers", "model.num_layers", "26"},
    {"hidden_size", "model.hidden_size", "2304"},
    {"num_attention_heads", "model.num_attention_heads", "8"},
    {"intermediate_size", "model.ffn_hidden_size", "9216"},
    {"vocab_size", "model.vocab_size", "262208"},
    {"max_position_embeddings", "model.max_seq_length", "131072"},
};
constexpr std::span<const ConfigKey> kKeys3[] = {kSizes3, kNormAndHead};
// In files of the first version, gelu also means the tanh form.
constexpr ConfigWord kWords[] = {
    {"hidden_act", "gelu_pytorch_tanh", "model.activation", "geglu"},
    {"hidden_act", "gelu_new", "model.activation", "geglu"},
    {"hidden_act", "gelu", "model.activation", "geglu"},
    {"hidden_act", "silu", "model.activation", "swiglu"},
    {"hidden_act", "swish", "model.activation", "swiglu"},
};
constexpr ConfigWord kNewWords[] = {
    {"hidden_activation", "gelu_pytorch_tanh", "model.activation", "geglu"},
    {"hidden_activation", "gelu_new", "model.activation", "geglu"},
    {"hidden_activation", "silu", "model.activation", "swiglu"},
    {"hidden_activation", "swish", "model.activation", "swiglu"},
};
constexpr std::string_view kHarmless[] = {"hidden_activation", "cache_implementation"};
constexpr std::string_view kHarmless2[] = {"hidden_act", "cache_implementation"};

constexpr const char* kAttentionCap = "attn_logit_softcapping";  // Gemma 3's class ignores it
constexpr const char* kLogitsCap = "final_logit_softcapping";

void scaled(ConfigReader& config, double missing_width = 0) {
  config.head_width(256);
  const double width = config.number("hidden_size").value_or(missing_width);
  config.set("model.embedding_scale", std::sqrt(width), "hidden_size");
}

void query_scalar(ConfigReader& config) {
  const double scalar = config.number("query_pre_attn_scalar").value_or(256.0);
  if (scalar <= 0.0) config.refuse("query_pre_attn_scalar", "isn't above 0");
  config.set("model.attention_scale", 1.0 / std::sqrt(scalar), "query_pre_attn_scalar");
}

// `missing`: the class's, where the key is missing.
void softcap(ConfigReader& config, std::string_view theirs, std::string_view ours,
             std::optional<std::string> missing = std::nullopt) {
  if (const auto cap = config.value(theirs, std::move(missing))) config.set(ours, *cap, theirs);
}

void gemma(ConfigReader& config) {
  kv_heads(config, 16);
  scaled(config);
  config.rotary();
  attention_biases(config);
}

void gemma2(ConfigReader& config) {
  kv_heads(config, 4);
  scaled(config);
  config.rotary();
  attention_biases(config);
  query_scalar(config);
  softcap(config, kAttentionCap, "model.attention_softcap", "50.0");
  softcap(config, kLogitsCap, "model.logits_softcap", "30.0");
  config.windows(config.layer_types().value_or("10"), kUsualWindow);
}

void gemma3(ConfigReader& config) {
  config.set("model.num_kv_heads", config.value("num_key_value_heads").value_or("4"),
             "num_key_value_heads");
  scaled(config, 2304);
  query_scalar(config);
  softcap(config, kLogitsCap, "model.logits_softcap");
  config.set("model.qk_norm", "head");
  const double windowed = config.number("rope_local_base_freq").value_or(10000.0);
  config.rotary_by_layer({.theta = 1000000.0}, windowed, false);
  attention_biases(config);
  std::optional<std::string> mask = config.layer_types();
  if (!mask) mask = all_but_every(config.layers("sliding_window_pattern", 6, 1));
  config.windows(*mask, kUsualWindow);
}

void write_gemma(FamilyWriter& config) {
  config.kv_heads();
  config.head_width();
  config.rotary();
  config.attention_bias();
}

// transformers 5 takes a whole number alone.
void write_scalar(FamilyWriter& config) {
  const double scale = config.number("model.attention_scale");
  const double scalar = scale == 0.0 ? config.number("model.head_width") : 1.0 / (scale * scale);
  config.set("query_pre_attn_scalar", static_cast<std::int64_t>(std::llround(scalar)));
}

void write_softcap(FamilyWriter& config, const char* theirs, const char* ours) {
  const double cap = config.number(ours);
  if (cap == 0.0) {
    config.set_null(theirs);
  } else {
    config.set(theirs, cap);
  }
}

void write_gemma2(FamilyWriter& config) {
  if (!config.heads_divide_width()) return;
  write_gemma(config);
  write_scalar(config);
  write_softcap(config, kAttentionCap, "model.attention_softcap");
  write_softcap(config, kLogitsCap, "model.logits_softcap");
  config.window_layers();
}

void write_gemma3(FamilyWriter& config) {
  if (!config.heads_divide_width()) return;
  config.kv_heads();
  config.head_width();
  config.rotary_by_layer();
  config.attention_bias();
  write_scalar(config);
  write_softcap(config, kLogitsCap, "model.logits_softcap");
  config.window_layers();
}

constexpr std::string_view kHarmless3[] = {"hidden_act", "cache_implementation",
                                           "_sliding_window_pattern"};
constexpr Family kFamilies[] = {
    {.model_type = "gemma",
     .architecture = "GemmaForCausalLM",
     .prefix = "model.",
     .modules = kModules,
     .buffers = kUsualBuffers,
     .fixed = kFixed,
     .keys = kKeys,
     .words = kWords,
     .harmless = kHarmless,
     .more = gemma,
     .write = write_gemma},
    {.model_type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .prefix = "model.",
     .modules = kSandwichModules,
     .buffers = kUsualBuffers,
     .fixed = kSandwich,
     .keys = kKeys,
     .words = kNewWords,
     .harmless = kHarmless2,
     .more = gemma2,
     .write = write_gemma2},
    {.model_type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .prefix = "model.",
     .modules = kSandwichModules,
     .buffers = kUsualBuffers,
     .fixed = kSandwich,
     .keys = kKeys3,
     .words = kNewWords,
     .harmless = kHarmless3,
     .more = gemma3,
     .write = write_gemma3,
     .two_rotary_tables = true},
};

}  // namespace

std::span<const Family> gemma_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
