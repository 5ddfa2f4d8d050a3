// Kinds of models that are asked for and aren't read: what each has that Sherd has not.
#include "engine/huggingface/family.h"

namespace sherd::huggingface {
namespace {

constexpr Lacking kLacking[] = {
    {"apertus", "the activation xIELU, whose two numbers are trained"},
    {"gptj", "a head with a bias"},
    {"opt", "the activation ReLU, and positions that begin at row 2"},
    {"phi", "a head with a bias"},
    {"bloom", "ALiBi in place of positions"},
    {"mpt", "ALiBi in place of positions"},
    {"olmo", "norms without weights"},
    {"gemma3n_text", "per-layer embeddings"},
    {"gemma3n", "per-layer embeddings"},
    {"qwen2_vl", "a vision tower, and positions of three parts"},
    {"qwen2_5_vl", "a vision tower, and positions of three parts"},
    {"mllama", "a vision tower, and attention to it"},
    {"qwen3_next", "layers without attention"},
    {"flex_olmo", "experts with norms after the branches"},
    {"dbrx", "queries, keys and values that are clamped"},
    {"jamba", "layers without attention"},
    {"mamba", "layers without attention"},
    {"mamba2", "layers without attention"},
    {"falcon_mamba", "layers without attention"},
    {"falcon_h1", "layers without attention"},
    {"nemotron_h", "layers without attention"},
    {"olmo_hybrid", "layers without attention"},
    {"recurrent_gemma", "layers without attention"},
    {"rwkv", "layers without attention"},
    {"lfm2", "convolutions in place of attention"},
    {"bert", "bidirectional attention"},
    {"t5", "an encoder"},
    {"bart", "an encoder"},
};

}  // namespace

std::span<const Lacking> lacking_families() {
  return kLacking;
}

}  // namespace sherd::huggingface
