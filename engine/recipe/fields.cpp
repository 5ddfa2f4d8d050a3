#include "engine/recipe/fields.h"

namespace sherd::engine {
namespace {

template <class F>
Slot slot_of(F member) {
  using T = std::remove_reference_t<std::invoke_result_t<F, Recipe&>>;
  if constexpr (std::is_enum_v<T>) {
    return ChoiceMember{[](Recipe& recipe) { return static_cast<int>(F{}(recipe)); },
                        [](Recipe& recipe, int i) { F{}(recipe) = static_cast<T>(i); }};
  } else {
    return static_cast<Member<T>>(member);
  }
}
// So the key and the member can't differ, and every row states what a resume does with it.
#define ROW(path, resume)                                                              \
  .key = #path, .slot = slot_of([](Recipe & recipe) -> auto& { return recipe.path; }), \
  .on_resume = OnResume::resume
#define MUST_MATCH(path) ROW(path, kMustMatch)
#define MAY_CHANGE(path) ROW(path, kMayChange)
#define FREE(path) ROW(path, kFree)

constexpr Fallback kRequired{Fallback::Kind::kRequired};
constexpr Fallback value(std::string_view yaml) {
  return {Fallback::Kind::kValue, yaml};
}
constexpr Fallback derived(std::string_view rule) {
  return {Fallback::Kind::kDerived, rule};
}

constexpr Range between(double min, double max) {
  return {.min = min, .max = max};
}
constexpr Range kFraction{.min = 0, .max = 1, .below_max = true};
// Values that kernels and updates use as floats.
constexpr Range kPositiveFloat{.min = 0, .above_min = true, .as_float = true};
constexpr Range kFloatFromZero{.min = 0, .as_float = true};
constexpr Range kFloatFraction{.min = 0, .max = 1, .below_max = true, .as_float = true};
constexpr double kMillion = 1'000'000;

// clang-format off
const std::vector<Field> kFields = {
    {FREE(run.name), .fallback = derived("the recipe's file name"), .help = "Names the run in its output."},
    {FREE(run.output_dir), .fallback = derived("runs/{run.name}"), .help = "Folder for metrics, the resolved recipe and traces; created if missing."},
    {MUST_MATCH(run.seed), .fallback = value("1"), .help = "Every random number (initial weights, order of the data, dropout, sampling) is a function of it."},
    {MAY_CHANGE(run.device), .fallback = value("auto"), .choices = {"auto", "cpu", "cuda"}, .help = "auto: a GPU if there is one that this program can use, else the CPU. cuda: needs a build with CUDA and one GPU per rank."},
    {FREE(run.share_device), .fallback = value("false"), .help = "Put all ranks on the first GPU. Slower than one rank; useful for trying out stages. Same as --share-device."},
    {MAY_CHANGE(run.deterministic), .fallback = value("true"), .help = "true: use only algorithms whose results are bit-identical in every run. false: faster attention backward, and weight gradients accumulated inside matmuls. CPUs are always deterministic."},
    {FREE(run.cuda_graphs), .fallback = value("false"), .help = "Launch each unit's kernels as one CUDA graph. Results stay bit-identical."},
    {FREE(run.peer_timeout), .fallback = value("600"), .range = between(1, 86400), .help = "Seconds that a rank waits for another in a collective. After that, it ends the run and names the other rank."},
    {FREE(run.num_threads), .fallback = value("0"), .range = between(0, 4096), .help = "Compute threads per rank. 0: the ranks share the machine's cores, at least one each. Results don't depend on it."},

    {FREE(model.from), .fallback = value("\"\""), .help = "Folder of a Hugging Face model. Its config.json sets the keys below (docs/huggingface.md). Weights are loaded separately, by checkpoint.init_from. The run copies config.json and the tokenizer's files to {run.output_dir}/huggingface."},
    {MUST_MATCH(model.num_layers), .fallback = kRequired, .range = between(1, 10'000), .help = "Transformer blocks."},
    {MUST_MATCH(model.hidden_size), .fallback = kRequired, .range = between(1, 1 << 18), .help = "Width of the residual stream. Without head_width, it must be a multiple of num_attention_heads."},
    {MUST_MATCH(model.num_attention_heads), .fallback = kRequired, .range = between(1, 1 << 14), .help = "Query heads, each head_width wide."},
    {MUST_MATCH(model.num_kv_heads), .fallback = derived("num_attention_heads"), .range = between(1, 1 << 14), .help = "Key and value heads (grouped-query attention). Must divide num_attention_heads."},
    {MUST_MATCH(model.ffn_hidden_size), .fallback = derived("4 x hidden_size; swiglu and geglu: 8/3 x hidden_size, up to the next multiple of 64"), .range = between(1, 1 << 20), .help = "Width inside the feed-forward layer."},
    {MUST_MATCH(model.vocab_size), .fallback = kRequired, .range = between(1, 1 << 24), .help = "Rows of the token embedding. Every token id in the data must be smaller. data.format chars needs the exact number of characters."},
    {MUST_MATCH(model.add_special_tokens), .fallback = value("[]"), .help = "Special tokens that data.tokenizer lacks, such as [<|im_start|>, <|im_end|>]. With model.from, embedding and head get a row for each missing one, initialised to the mean of their rows. With an adapter, embedding and head must be in adapter.modules_to_save. Only a chat template writes these tokens; in messages they stay text."},
    {MAY_CHANGE(model.max_seq_length), .fallback = derived("training.seq_length"), .range = between(1, 1 << 24), .help = "Longest sequence that the model can read; the number of learned positions."},
    {MUST_MATCH(model.norm), .fallback = value("rmsnorm"), .choices = {"layernorm", "rmsnorm"}, .help = "Normalisation in blocks (see norm_placement) and before the head."},
    {MUST_MATCH(model.positions), .fallback = value("rope"), .choices = {"learned", "rope"}, .help = "Learned position embeddings (GPT-2) or rotary embeddings in every attention (Llama)."},
    {MUST_MATCH(model.activation), .fallback = value("swiglu"), .choices = {"gelu", "swiglu", "gelu_erf", "relu2", "geglu", "clamped_swiglu"}, .help = "Feed-forward layer. Two matrices with GELU (gelu: tanh form, gelu_erf: exact) or squared ReLU; three with a SiLU (swiglu) or GELU (geglu) gate. clamped_swiglu: gpt-oss's, with bounds of 7."},
    {MUST_MATCH(model.bias), .fallback = value("false"), .help = "Biases in linear layers and layernorm, unless a specific key (qkv_bias, ...) overrides it."},
    {MUST_MATCH(model.tie_embeddings), .fallback = value("false"), .help = "The head uses the token embedding's matrix."},
    {MUST_MATCH(model.dropout), .fallback = value("0"), .range = kFloatFraction, .help = "Dropout probability of the embedding, the attention probabilities and the residual branches."},
    {MUST_MATCH(model.rope_theta), .fallback = value("10000"), .range = between(1e-6, 1e15), .help = "Base of the rotary frequencies."},
    {MUST_MATCH(model.norm_eps), .fallback = value("1e-05"), .range = kPositiveFloat, .help = "Added to the variance (layernorm) or mean square (rmsnorm)."},
    {FREE(model.init_std), .fallback = value("0.02"), .range = between(1e-12, 1e6), .help = "Standard deviation of initial weights; projections back into the residual stream use init_std / sqrt(2 x num_layers)."},
    {MUST_MATCH(model.head_width), .fallback = derived("hidden_size / num_attention_heads"), .range = between(1, 1 << 16), .help = "Width of a query, key or value head. Must be even with rope."},
    {MUST_MATCH(model.block), .fallback = value("sequential"), .choices = {"sequential", "parallel", "parallel_one_norm"}, .help = "sequential: attention, then feed-forward. parallel: both read the block's input, each through its own norm. parallel_one_norm: both through one norm."},
    {MUST_MATCH(model.norm_placement), .fallback = value("pre"), .choices = {"pre", "post", "sandwich"}, .help = "pre: norms before attention and feed-forward. post: norms of their outputs, before these join the residual stream. sandwich: both. Parallel blocks support only pre."},
    {MUST_MATCH(model.norm_offset), .fallback = value("0"), .range = between(0, 1), .help = "Norms multiply by norm_offset + weight; weights start at 1 - norm_offset. Applies to the norms of queries and keys and to the final norm, too."},
    {MUST_MATCH(model.norm_bias), .fallback = derived("bias with layernorm, else false"), .help = "Biases in layernorm."},
    {MUST_MATCH(model.qkv_bias), .fallback = derived("bias"), .help = "Biases of the query, key and value projections."},
    {MUST_MATCH(model.output_bias), .fallback = derived("bias"), .help = "Bias of the attention's output projection."},
    {MUST_MATCH(model.mlp_bias), .fallback = derived("bias"), .help = "Biases in the feed-forward layer."},
    {MUST_MATCH(model.head_bias), .fallback = value("false"), .help = "Bias of the logits, as in Phi-3.5-MoE. Such models are evaluated, not trained."},
    {MUST_MATCH(model.qk_norm), .fallback = value("none"), .choices = {"none", "head", "head_after_rope", "per_head", "projection", "rotated"}, .help = "Norms of queries and keys before rotation. head: over each head, with shared weights. head_after_rope: the same after rotation. per_head: over each head, with separate weights. projection: over all heads together. rotated: over each head after rotation, without weights, in the layers of rope_layers (Llama 4). Kind, eps and offset come from norm, norm_eps and norm_offset."},
    {MUST_MATCH(model.kv_lora_rank), .fallback = value("0"), .range = between(0, 1 << 16), .help = "Latent attention (docs/mixtures.md#latent-attention), as DeepSeek has it: rank of the latent from which keys and values of all heads are made. 0: no latent attention."},
    {MUST_MATCH(model.q_lora_rank), .fallback = value("0"), .range = between(0, 1 << 16), .help = "Rank of the latent from which queries are made. 0: queries have one projection."},
    {MUST_MATCH(model.qk_nope_head_dim), .fallback = value("0"), .range = between(0, 1 << 15), .help = "Numbers of a query or key head that aren't rotated. Even."},
    {MUST_MATCH(model.qk_rope_head_dim), .fallback = value("0"), .range = between(0, 1 << 15), .help = "Numbers of a query or key head that are rotated. Keys of all heads share them. Even."},
    {MUST_MATCH(model.v_head_dim), .fallback = value("0"), .range = between(0, 1 << 15), .help = "Width of a value head, at most that of a key."},
    {MUST_MATCH(model.attention_sinks), .fallback = value("false"), .help = "Each query head has a trained number that joins its softmax and has no value, as in gpt-oss."},
    {MUST_MATCH(model.attention_scale), .fallback = value("0"), .range = kFloatFromZero, .help = "Multiplies attention scores. 0: 1 / sqrt(head_width)."},
    {MUST_MATCH(model.attention_softcap), .fallback = value("0"), .range = kFloatFromZero, .help = "Attention scores s become cap x tanh(s / cap). 0: no cap."},
    {MUST_MATCH(model.logits_scale), .fallback = value("1"), .range = kPositiveFloat, .help = "Multiplies logits, before logits_softcap. With mup_base_hidden_size: mup_base_hidden_size / hidden_size."},
    {MUST_MATCH(model.logits_softcap), .fallback = value("0"), .range = kFloatFromZero, .help = "Logits z become cap x tanh(z / cap). 0: no cap."},
    {MUST_MATCH(model.mup_base_hidden_size), .fallback = value("0"), .range = between(0, 1 << 18), .help = "Width of the model that rates were tuned on: muP (docs/parameter_groups.md) scales initial values, rates and logits by hidden_size / mup_base_hidden_size. 0: no muP."},
    {MUST_MATCH(model.embedding_scale), .fallback = value("1"), .range = kPositiveFloat, .help = "Multiplies token embeddings."},
    {MUST_MATCH(model.residual_scale), .fallback = value("1"), .range = kPositiveFloat, .help = "Multiplies what attention and feed-forward add to the residual stream."},
    {MUST_MATCH(model.window), .fallback = value("0"), .range = between(0, 1 << 24), .help = "Number of keys that a query sees in windowed layers, including its own. 0: full attention."},
    {MUST_MATCH(model.window_layers), .fallback = value("\"1\""), .help = "Layers with a window: 1 or 0 per layer, repeated from the first layer on. With \"111110\", every sixth layer has full attention."},
    {MUST_MATCH(model.rope_layers), .fallback = value("\"1\""), .help = "Layers that rotate queries and keys: 1 or 0 per layer, repeated from the first layer on."},
    {MUST_MATCH(model.query_growth), .fallback = value("0"), .range = between(0, 1000), .help = "In layers that don't rotate, queries at position p (from 0) are multiplied by 1 + query_growth x ln(1 + floor((p + 1) / query_step)), as in Llama 4. 0: they aren't."},
    {MUST_MATCH(model.query_step), .fallback = value("8192"), .range = between(1, 1 << 30), .help = "Positions after which query_growth takes its next step."},
    {MUST_MATCH(model.rope_fraction), .fallback = value("1"), .range = {.min = 0, .max = 1, .above_min = true}, .help = "Fraction of a head that is rotated: floor(head_width x rope_fraction) elements, as pairs (j, j + head_width / 2) from j = 0 on."},
    {MUST_MATCH(model.rope_scaling), .fallback = value("none"), .choices = {"none", "linear", "llama3", "yarn", "longrope"}, .help = "Changes rotary frequencies for longer texts; equations and sources are in kernels/rotary_frequencies.h."},
    {MUST_MATCH(model.rope_factor), .fallback = value("1"), .range = between(1, kMillion), .help = "Factor by which rope_scaling lengthens texts. With longrope, it only determines the factor on cosines and sines."},
    {MUST_MATCH(model.rope_original_length), .fallback = value("0"), .range = between(0, 1 << 24), .help = "Length of texts before rope_scaling."},
    {MUST_MATCH(model.rope_low_freq_factor), .fallback = value("1"), .range = between(1e-6, kMillion), .help = "Pairs with fewer rotations than this in rope_original_length are stretched by rope_factor."},
    {MUST_MATCH(model.rope_high_freq_factor), .fallback = value("4"), .range = between(1e-6, kMillion), .help = "Pairs with more rotations than this stay unchanged. Must be above rope_low_freq_factor."},
    {MUST_MATCH(model.rope_beta_fast), .fallback = value("32"), .range = between(1e-6, kMillion), .help = "Pairs with more rotations than this in rope_original_length stay unchanged."},
    {MUST_MATCH(model.rope_beta_slow), .fallback = value("1"), .range = between(1e-6, kMillion), .help = "Pairs with fewer rotations than this are stretched by rope_factor. At most rope_beta_fast."},
    {MUST_MATCH(model.rope_truncate), .fallback = value("true"), .help = "Round the pair indices that belong to rope_beta_fast and rope_beta_slow to whole numbers."},
    {MUST_MATCH(model.rope_attention_factor), .fallback = value("0"), .range = between(0, kMillion), .help = "Factor of rope_scaling on cosines and sines. 0: computed by the scaling's own rule."},
    {MUST_MATCH(model.rope_short_factors), .fallback = value("[]"), .range = between(1e-6, kMillion), .help = "Divisors of the frequencies if training.seq_length is at most rope_original_length. One number per rotated pair."},
    {MUST_MATCH(model.rope_long_factors), .fallback = value("[]"), .range = between(1e-6, kMillion), .help = "The same for longer sequences."},
    {MUST_MATCH(model.window_rope_theta), .fallback = value("0"), .range = between(0, 1e15), .help = "Base of the rotary frequencies in windowed layers. 0: rope_theta."},
    {MUST_MATCH(model.window_rope_scaling), .fallback = value("true"), .help = "Apply rope_scaling in windowed layers, too."},

    {MUST_MATCH(moe.num_experts), .fallback = value("0"), .range = between(0, 4096), .help = "Experts in each layer that has any. 0: no mixture of experts."},
    {MUST_MATCH(moe.experts_per_token), .fallback = value("2"), .range = between(1, 4096), .help = "Experts that the router chooses for each token."},
    {MUST_MATCH(moe.ffn_hidden_size), .fallback = derived("model.ffn_hidden_size"), .range = between(0, 1 << 20), .help = "Width inside one expert. 0 without experts."},
    {MUST_MATCH(moe.shared_ffn_hidden_size), .fallback = value("0"), .range = between(0, 1 << 20), .help = "Width inside the expert that every token goes through. 0: there is none. Several shared experts are one of their total width."},
    {MUST_MATCH(moe.shared_gate), .fallback = value("false"), .help = "Multiply the shared expert's output by a learned gate, sigmoid(g x)."},
    {MUST_MATCH(moe.layers), .fallback = value("\"1\""), .help = "Layers with experts: 1 or 0 per layer, repeated from the first layer on. The others have a dense feed-forward layer."},
    {MUST_MATCH(moe.score), .fallback = value("softmax"), .choices = {"softmax", "softmax_of_chosen", "sigmoid", "sparsemixer"}, .help = "What the router makes of its logits. softmax: over all experts. softmax_of_chosen: the largest logits are chosen, and the softmax is over these. sigmoid: each logit alone. sparsemixer: Phi-3.5-MoE's, for evaluation only."},
    {MUST_MATCH(moe.normalize_weights), .fallback = value("true"), .help = "Divide the weights of a token's experts by their sum."},
    {MUST_MATCH(moe.weight_scale), .fallback = value("1"), .range = kPositiveFloat, .help = "Multiplies the weights, after they are normalised."},
    {MUST_MATCH(moe.weigh_input), .fallback = value("false"), .help = "A weight multiplies what its expert reads, not what it writes, as in Llama 4."},
    {MUST_MATCH(moe.jitter), .fallback = value("0.01"), .range = kFloatFromZero, .help = "Logits within about twice this fraction of the largest count as near ties of sparsemixer, whose softmax is over these."},
    {MUST_MATCH(moe.num_groups), .fallback = value("1"), .range = between(1, 4096), .help = "Groups of experts. A token's experts are of kept_groups of them: those with the largest score, with sigmoid the largest sum of two."},
    {MUST_MATCH(moe.kept_groups), .fallback = value("1"), .range = between(1, 4096), .help = "Groups from which a token's experts are chosen."},
    {MUST_MATCH(moe.bias), .fallback = value("false"), .help = "Biases of the router's logits and of the experts' projections, as in gpt-oss."},
    {MUST_MATCH(moe.correction_bias), .fallback = value("false"), .help = "The router has a bias for each expert that only the choice sees, not the weights: DeepSeek-V3's balance without a loss (docs/experts.md)."},
    {MAY_CHANGE(moe.bias_update_rate), .fallback = derived("0.001 with correction_bias and random initial weights, else 0"), .range = kFloatFromZero, .help = "By how much a step changes the bias of each expert: up if the step gave it fewer tokens than the mean, down if more. 0: never, as fine-tuning should."},
    {MAY_CHANGE(moe.balance_scope), .fallback = value("micro_batch"), .choices = {"sequence", "micro_batch", "previous_step"}, .help = "Tokens over which the balance loss counts the choices of an expert: each sequence, a micro-batch, or all of the previous step. The first step of all counts its own micro-batches."},
    {MAY_CHANGE(moe.balance_loss), .fallback = derived("0.01 for random initial weights without correction_bias; else 0, or with output_router_logits in a folder's config.json its router_aux_loss_coef"), .range = kFloatFromZero, .help = "Coefficient of the loss that keeps experts in balance: 1 x coefficient per layer if they are. It is Megatron's. A coefficient c of transformers is as strong as c x experts_per_token / (layers with experts) here. 0: no such loss."},
    {MAY_CHANGE(moe.z_loss), .fallback = value("0"), .range = kFloatFromZero, .help = "Coefficient of the mean square of the logits' logsumexp, which keeps logits small. 0: no such loss."},
    {FREE(moe.buffer_rows), .fallback = value("0"), .range = between(0, 1 << 30), .help = "Rows of the experts' buffers. Experts are computed in rounds of as many whole pieces of 512 rows as fit; results don't depend on it. 0: as many as a micro-batch has tokens; with expert ranks, times experts_per_token."},
    {MAY_CHANGE(moe.grouped_gemm), .fallback = value("false"), .help = "Multiply the rows of all experts of a round in one launch of cuDNN, in the forward pass and where it is recomputed. Results differ by rounding. Needs bf16 or f16, and widths that are multiples of 8. Gradients still take a launch for each expert: on Hopper, cuDNN 9.19 has no plan for them."},

    {MUST_MATCH(adapter.type), .fallback = value("none"), .choices = {"none", "lora"}, .help = "lora: train low-rank matrices next to the model's frozen matrices (docs/fine_tuning.md). none: train all weights.", .demand = "types are none and lora; QLoRA is lora with adapter.base_dtype: nf4; DoRA isn't supported"},
    {MUST_MATCH(adapter.rank), .fallback = value("8"), .range = between(1, 1 << 16), .help = "Rows of A and columns of B. At most the rows and columns of each target."},
    {MUST_MATCH(adapter.alpha), .fallback = derived("rank"), .range = kPositiveFloat, .help = "The adapter's output is scaled by alpha / rank, or by alpha / sqrt(rank) with rslora."},
    {MUST_MATCH(adapter.rslora), .fallback = value("false"), .help = "Rank-stabilised LoRA: divide alpha by the square root of the rank."},
        {MUST_MATCH(adapter.base_dtype), .fallback = value("param_dtype"), .choices = {"param_dtype", "nf4"}, .help = "Storage of frozen weights. param_dtype: in mixed_precision.param_dtype. nf4 (QLoRA): the blocks' matrices are 4-bit codes with doubly quantised scales (4.13 bits per weight), decoded when a block is used."},
    {MAY_CHANGE(adapter.dropout), .fallback = value("0"), .range = kFloatFraction, .help = "Dropout probability on adapter inputs. Each target draws its own mask."},
    {MAY_CHANGE(adapter.lora_plus_ratio), .fallback = value("1"), .range = kPositiveFloat, .help = "Learning rate of B over that of A (LoRA+); optimizer.lr is A's."},
    {MUST_MATCH(adapter.targets), .fallback = value("[all-linear]"), .help = "Matrices that get an adapter. Names of the model's family (q_proj, c_attn, ...; with model.from), or attention.query, .key, .value, .qkv (one adapter for three), .output, mlp.gate, .up, .gate_up (one for both), .down, or in a mixture moe.experts.gate, .up, .down (one for each expert). all-linear: every matrix of the blocks, fused or separate as in the family; in a mixture those of attention."},
    {MUST_MATCH(adapter.modules_to_save), .fallback = value("[]"), .help = "Modules that are trained in full alongside the adapters. The family's names (embed_tokens, lm_head, ...), or embedding.token, head, final_norm, norm1, norm2, or a matrix that isn't a target."},

    {FREE(data.path), .fallback = kRequired, .help = "A file, a folder (the text files below it) or a glob such as texts/*.txt. Files written by training runs are skipped. With formats bytes, chars and text, each line of a .jsonl file and each row of a .parquet or .arrow file is one text, and so is any other file; .gz and .zst are unpacked. Texts shorter than a sequence are joined in the order of their names, and the run prints how many."},
    {MUST_MATCH(data.format), .fallback = value("bytes"), .choices = {"bytes", "chars", "bin", "text", "chat"}, .help = "bytes: token = byte. chars: token = position of the character in the sorted characters of the text. bin: token files of Sherd (sherd tokenize), llm.c, llmq, Megatron (.bin with .idx) or datatrove, raw tokens (nanoGPT), or lists of ids in .parquet and .arrow files. text: a file, a line of a .jsonl file, or a row of a .parquet or .arrow file, is one document; data.tokenizer encodes it when the run begins (small data). chat: conversations, one per line of a .jsonl file (also .gz, .zst) or row of a .parquet or .arrow file, in the tokenizer's chat template (docs/data.md#conversations). Default: text if model.from has a tokenizer.json."},
    {FREE(data.tokenizer), .fallback = value("\"\""), .help = "Folder with a Hugging Face tokenizer.json. Formats text and chat need it. With bin, it decodes samples to text, and files made with another tokenizer are refused."},
    {FREE(data.field), .fallback = value("text"), .help = "Key of the text in a line of a .jsonl file, or its column in .parquet and .arrow files. With format bin, the column of the ids, such as input_ids."},
    {FREE(data.token_bytes), .fallback = value("0"), .range = between(0, 8), .help = "Bytes per token: 1, 2, 4 or 8. 0: taken from the file's header; without a header 2, if the vocabulary has at most 65,536 tokens."},
    {FREE(data.validation_path), .fallback = value("\"\""), .help = "Held-out data, given like path. Empty: a part of path is held out."},
    {MUST_MATCH(data.validation_fraction), .fallback = derived("0.1, or 0 with validation_path or validation_sets"), .range = kFraction, .help = "Fraction held out for validation. With documents: joined, it is the end of every text. With separate, it is that fraction of the documents, spread evenly among all."},
    {FREE(data.sources), .fallback = value("[]"), .help = "Several texts instead of path, mixed by weight (docs/controls.md#several-sources). A weight counts sequences, and so tokens."},
    {FREE(data.stages), .fallback = value("[]"), .help = "Stages of the run with other weights of the sources, sequence lengths or batch sizes. A resume refuses changes in stages that have begun; later ones may change, and the list may grow."},
    {FREE(data.validation_sets), .fallback = value("[]"), .help = "Further held-out texts, each with a loss of its own. They follow the held-out part of path, if there is one."},
    {MUST_MATCH(data.documents), .fallback = derived("joined, or separate with format chat"), .choices = {"joined", "separate"}, .help = "joined: sequences are cut from the text at any position. separate: attention stays inside a document, positions restart with each document, and a document's last token has no target (docs/data.md#documents)."},
    {MUST_MATCH(data.packing), .fallback = value("best_fit"), .choices = {"best_fit", "none"}, .help = "best_fit: packs an epoch's documents into as few sequences as it can. none: one sequence per document. A document longer than seq_length is cut."},
    {MUST_MATCH(data.unfit), .fallback = value("drop"), .choices = {"drop", "cut", "error"}, .help = "What happens to rows that can't be trained on (docs/data.md). drop: they are dropped and counted by reason. cut: rows longer than seq_length are cut to it, others dropped. error: an error names the line."},
    {MUST_MATCH(data.rewritten_history), .fallback = value("train_last"), .choices = {"train_last", "error"}, .help = "What to do if the template changes an earlier answer, for example by removing its thinking. train_last: train on the last answer only. error: end with an error."},

    {MUST_MATCH(training.seq_length), .fallback = kRequired, .range = between(1, 1 << 24), .help = "Tokens per sequence."},
    {MUST_MATCH(training.global_batch_size), .fallback = derived("micro_batch_size x gradient_accumulation_steps x ranks"), .range = between(1, 1e9), .help = "Sequences per step over all ranks. Two of the three batch keys determine the third. A batch size alone means gradient_accumulation_steps: 1."},
    {MAY_CHANGE(training.micro_batch_size), .fallback = derived("global_batch_size / (gradient_accumulation_steps x ranks)"), .range = between(1, kMillion), .help = "Sequences per rank in one forward and backward pass."},
    {MAY_CHANGE(training.gradient_accumulation_steps), .fallback = derived("global_batch_size / (micro_batch_size x ranks), or 1"), .range = between(1, kMillion), .help = "Micro-steps per step."},
    {MAY_CHANGE(training.max_steps), .fallback = derived("num_epochs of the data; required without num_epochs"), .range = between(1, 1e12), .help = "Optimizer steps in the whole run. num_epochs may be given instead. If both are given, they must mean the same number of steps."},
    {MAY_CHANGE(training.num_epochs), .fallback = value("0"), .range = between(0, kMillion), .help = "Passes over the training data, instead of max_steps. 0: max_steps decides. An epoch uses each of its sequences once. With documents: separate, these are the packed sequences; otherwise windows of the text, and every epoch draws a new offset for each file. An epoch begins in the step in which the previous one ends. The run's last step takes the remaining sequences; its loss and gradient are means over them."},
    {FREE(training.eval_interval), .fallback = value("0"), .range = between(0, 1e12), .help = "Steps between evaluations on the validation split. 0: evaluate only at the end."},
    {FREE(training.eval_batches), .fallback = value("0"), .range = between(0, 1e9), .help = "Batches of global_batch_size sequences per evaluation. 0: the whole validation split."},
    {MAY_CHANGE(training.early_stopping_patience), .fallback = value("0"), .range = between(0, kMillion), .help = "End the run after this many evaluations in a row without a new lowest validation loss. The checkpoint saved then is its last. 0: never."},
    {FREE(training.final_eval), .fallback = value("batches"), .choices = {"batches", "whole"}, .help = "Evaluation after the last step. batches: eval_batches, like all others. whole: the whole validation split."},
    {FREE(training.eval_at_start), .fallback = value("false"), .help = "Evaluate before the first step, too."},
    {FREE(training.tasks), .fallback = value("[]"), .help = "Questions with choices, which every evaluation answers by the likelihood of the choices (docs/tasks.md). They don't change the training."},
    {MAY_CHANGE(training.best_by), .fallback = value("\"\""), .help = "Name of the validation set whose loss is the run's: keep_best and early stopping use it. Empty: the first set."},
    {MUST_MATCH(training.train_on), .fallback = value("assistant"), .choices = {"all", "assistant", "completion", "last"}, .help = "Which tokens have a loss. all: every token. assistant: the assistant's answers. completion: everything after the last message of another role. last: the last answer."},
    {FREE(training.sample_tokens), .fallback = value("0"), .range = between(0, kMillion), .help = "Tokens to sample from the model at the end. 0: none."},
    {FREE(training.sample_prompt), .fallback = value("\"\""), .help = "Text that the sample continues."},
    {FREE(training.sample_temperature), .fallback = value("0.8"), .range = between(0, 1000), .help = "Divides the logits before sampling. 0: always take the most likely token."},
    {FREE(training.sample_top_k), .fallback = value("0"), .range = between(0, 1 << 24), .help = "Sample among this many most likely tokens. 0: all tokens."},
    {MUST_MATCH(training.overfit_one_batch), .fallback = value("false"), .help = "Train on the batch of step 0 in every step. The loss of a correct set-up approaches 0."},
    {MAY_CHANGE(training.z_loss_multiplier), .fallback = value("0"), .range = kFloatFromZero, .help = "Coefficient of the z-loss of the output logits, the mean squared logarithm of the sum of their exponentials (docs/stability.md); 1e-4 is usual. Its gradient is added; the loss is reported without it. 0: no such loss."},
    {FREE(training.weight_hash_interval), .fallback = value("0"), .range = between(0, kMillion), .help = "Steps after which ranks compare hashes of the weights that several of them hold (docs/controls.md). A difference ends the run with the parameter and the ranks. 0: never."},

    {MAY_CHANGE(parallelism.data_parallel_shard_degree), .fallback = value("1"), .range = between(1, 65'536), .help = "Ranks that share the training state. --ranks N sets it."},
    {MAY_CHANGE(parallelism.data_parallel_replicate_degree), .fallback = value("1"), .range = between(1, 65'536), .help = "Hybrid sharding: number of replicas. Each replica has data_parallel_shard_degree ranks that hold the whole training state; replicas add their gradients once per step. Use it if a group of ranks has fast links inside."},
    {MAY_CHANGE(parallelism.batch_groups), .fallback = derived("data_parallel_replicate_degree"), .range = between(1, 65'536), .help = "Contiguous parts of the batch whose gradients are summed separately, then added in order. A run with R groups and no replicas is bit-identical to one with R replicas, and holds one more gradient slice."},
    {MAY_CHANGE(parallelism.pipeline_parallel_degree), .fallback = value("1"), .range = between(1, 1024), .help = "Pipeline: number of ranks that divide the layers and work on different micro-batches (docs/parallelism.md). Multiplied by the other degrees, this is the number of ranks. Results are bit-identical to one rank; with tie_embeddings the last digits differ, unless sum_order is canonical."},
    {MAY_CHANGE(parallelism.tensor_parallel_degree), .fallback = value("1"), .range = between(1, 1024), .help = "Tensor parallelism: number of ranks that divide each matrix, heads and vocabulary, and add their activations four times per layer (docs/parallelism.md). Multiplied by the other degrees, this is the number of ranks. Results differ from one rank in their last digits, unless sum_order is canonical."},
    {MAY_CHANGE(parallelism.sequence_parallel), .fallback = value("false"), .help = "Sequence parallelism: each tensor rank computes norms, residual stream and dropout for a part of a micro-batch's tokens, so all activations of a layer are divided (docs/parallelism.md). All-gathers and reduce-scatters replace all-reduces. Norm gradients are added over tensor ranks, which changes the last digits, unless sum_order is canonical."},
    {MAY_CHANGE(parallelism.context_parallel_degree), .fallback = value("1"), .range = between(1, 1024), .help = "Context parallelism: number of ranks that divide the positions of every sequence (docs/parallelism.md). They share the training state like data_parallel_shard_degree. Results differ from one rank in their last digits, unless sum_order is canonical."},
    {MAY_CHANGE(parallelism.context_parallel_method), .fallback = value("ulysses"), .choices = {"ulysses", "all_gather", "ring"}, .help = "How context ranks compute attention. ulysses: all-to-alls give each rank all positions of some heads; needs enough heads. all_gather: each rank has all keys and values and computes its own queries; any number of heads. ring: keys and values pass from rank to rank, so no rank holds more than two ranks' keys; twice the degree must divide seq_length, and sum_order: canonical isn't supported."},
    {MAY_CHANGE(parallelism.expert_parallel_degree), .fallback = value("1"), .range = between(1, 1024), .help = "Expert parallelism: number of ranks that divide the experts of every layer (docs/experts.md). It divides data_parallel_shard_degree: no rank is added. Each token's rows travel to the ranks that hold its experts, and no token is dropped. Results are bit-identical for every degree with the same grad_sync."},
    {MAY_CHANGE(parallelism.sum_order), .fallback = value("rank"), .choices = {"rank", "canonical", "free"}, .help = "Order of sums over ranks. rank: rank by rank, so another tensor or context degree changes the last digits. canonical: a tree over eight groups of heads, feed-forward columns, vocabulary and tokens, in f32. 1, 2, 4 and 8 ranks are then bit-identical, but slower and with more memory (docs/precision.md); CPUs only. free: over MPI, a machine's ranks are added before their sum crosses to another machine (docs/distributed.md); as rank on one machine."},
    {FREE(parallelism.pipeline_schedule), .fallback = value("1f1b"), .choices = {"layer_parallel", "gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v", "dualpipe_v"}, .help = "Order in which pipeline ranks compute forwards and backwards. `sherd schedule --help` compares them."},
    {FREE(parallelism.pipeline_chunks_per_rank), .fallback = derived("the schedule's minimum: 2 for interleaved_1f1b, zb_v and dualpipe_v, else 1"), .range = between(1, 1024), .help = "Chunks of consecutive layers per pipeline rank. Only interleaved_1f1b supports other numbers."},
    {FREE(parallelism.pipeline_layers_per_chunk), .fallback = value("[]"), .range = between(1, 10'000), .help = "Layers of each chunk, in the order of the model. By default, layers are divided so that the slowest chunk is as fast as possible; the head counts as several layers."},
    {FREE(parallelism.hierarchical), .fallback = value("auto"), .choices = {"auto", "on", "off"}, .help = "Gathers between machines (processes of mpirun). auto: each slice crosses to a machine once, and a rank there passes it on. off: it is sent directly to each rank. on: as auto, with every process as a machine. Unused for threads of one process and for GPUs. Results don't depend on it, unless sum_order is free."},
    {FREE(parallelism.parameter_servers), .fallback = value("0"), .range = between(0, 65'536), .help = "Further ranks, the last ones of the run, that hold the optimizer state and the FP32 weights and update them (docs/parameter_server.md). They have no batch. The other ranks compute, send them gradients, and get parameters in param_dtype. Results are bit-identical to a run without them at stage 1 with the same grad_sync. 0: the ranks that compute also hold the state."},
    {MUST_MATCH(parallelism.publish_delay), .fallback = value("0"), .range = between(0, 1), .help = "With parameter_servers. 1: a step is computed with the parameters before the previous step's update, so workers don't wait for it. This changes the training. 0: with the newest parameters."},

    {FREE(zero_optimization.stage), .fallback = value("0"), .range = between(0, 3), .help = "What is sharded over ranks: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters. With the same grad_sync, all stages give bit-identical results.", .demand = "stages are 0, 1, 2 and 3"},
    {FREE(zero_optimization.prefetch_depth), .fallback = value("1"), .range = between(0, 64), .help = "Number of units gathered ahead of the current one."},
    {FREE(zero_optimization.reshard_after_forward), .fallback = value("true"), .help = "true: release a unit after its forward and gather it again for its backward. false: keep it until then."},
    {MAY_CHANGE(zero_optimization.grad_sync), .fallback = derived("boundary at stages 0 and 1 without batch_groups, expert ranks or canonical sums of context ranks, else every_micro_step"), .choices = {"every_micro_step", "boundary"}, .help = "When ranks reduce their gradients. every_micro_step: in each micro-step; a rank holds a slice. boundary: once per step; a rank holds full gradients and sends less. With one micro-step, both are bit-identical. With several, they add in another order, so losses differ in their last digits. Only every_micro_step is then bit-identical on any number of ranks."},
    {FREE(zero_optimization.shard_optimizer_over_replicas), .fallback = value("false"), .help = "From stage 1 on, the replicas of data_parallel_replicate_degree also divide the optimizer state and the FP32 master weights. Replicas then exchange a reduce-scatter and an all-gather per step instead of an all-reduce. Results stay bit-identical on CPUs. Not supported with muon, dion, diloco and compressed sums."},
    {FREE(zero_optimization.offload_optimizer), .fallback = value("none"), .choices = {"none", "cpu", "nvme"}, .help = "nvme: between steps, the optimizer state is on a disk, in the folder offload_path; at stages 0 to 2 with 16-bit compute, so are the FP32 master weights (CPUs). cpu: it is in the host's memory (GPUs). The update brings it into memory block by block. Results stay bit-identical (docs/offload.md)."},
    {FREE(zero_optimization.offload_param), .fallback = value("none"), .choices = {"none", "cpu", "nvme"}, .help = "At stage 3. nvme: a rank's slices of the parameters are on a disk, and each gather reads them (CPUs). cpu: they are in the host's memory (GPUs)."},
    {FREE(zero_optimization.offload_update), .fallback = value("none"), .choices = {"none", "cpu"}, .help = "On GPUs whose optimizer state and FP32 weights are in the host's memory. cpu: the host's cores update them there, with run.num_threads threads for each rank, so only gradients and rounded weights are copied. none: the GPU updates them. Results are bit-identical (docs/host_updates.md)."},
    {FREE(zero_optimization.offload_path), .fallback = value("\"\""), .help = "Folder for state that is on disk, on a local drive; it is made if it doesn't exist. Each rank has a file there without a name, which disappears with the run. Empty: run.output_dir."},
    {FREE(zero_optimization.offload_buffer_mib), .fallback = value("256"), .range = between(1, 1 << 20), .help = "Memory of a rank, in MiB, through which state from a disk or the host passes: four blocks, of at most 4 Mi parameters each."},

    {MUST_MATCH(mixed_precision.param_dtype), .fallback = value("f32"), .choices = {"f32", "bf16", "f16"}, .help = "Type of parameters and activations in computation and all-gathers. Each rank's slice is always f32. f16 needs loss_scaling."},
    {MAY_CHANGE(mixed_precision.gather_dtype), .fallback = value("param_dtype"), .choices = {"param_dtype", "int8_block64", "int4_block64"}, .help = "Type in which ranks send their slices of parameters. int8_block64, int4_block64: for slow links, blocks of 64 elements with a scale (docs/slow_links.md). Every stage then computes with the rounded parameters, on one rank too, so stages stay bit-identical. Norms, biases and frozen parameters are sent as they are."},
    {MAY_CHANGE(mixed_precision.reduce_dtype), .fallback = value("f32"), .choices = {"f32", "bf16", "f16", "int8_block64", "int4_block64"}, .help = "Type in which ranks send a micro-step's gradient (sums are f32). At least as wide as param_dtype, or for slow links blocks of 64 elements with a scale (docs/slow_links.md; norms and biases are sent as f32). One rank rounds its gradient too."},
    {MAY_CHANGE(mixed_precision.grad_accum_dtype), .fallback = derived("reduce_dtype, or f32 if it is in blocks"), .choices = {"f32", "bf16", "f16"}, .help = "Type of gradients accumulated over micro-steps. May differ from reduce_dtype only with grad_sync: every_micro_step."},
    {MAY_CHANGE(mixed_precision.replica_reduce_dtype), .fallback = derived("reduce_dtype if it is in blocks, else grad_accum_dtype"), .choices = {"grad_accum_dtype", "int8_block64", "int4_block64"}, .help = "Type in which replicas send the sums of their gradients, for slow links between them (docs/slow_links.md). Groups of batch_groups are rounded in the same way."},
    {MUST_MATCH(mixed_precision.optimizer_state_dtype), .fallback = value("f32"), .choices = {"f32", "bf16", "f16"}, .help = "Type of the optimizer's moments: f32 or bf16."},
    {MAY_CHANGE(mixed_precision.stochastic_rounding), .fallback = value("false"), .help = "true: round bf16 moments up or down at random, in proportion, with a counter-based generator. false: round to nearest."},
    {MAY_CHANGE(mixed_precision.allow_tf32), .fallback = value("false"), .help = "Multiply f32 matrices in TF32 (inputs have 10 bits of mantissa, sums are f32)."},

    {MAY_CHANGE(loss_scaling.mode), .fallback = derived("dynamic with f16 parameters or gradients, otherwise none"), .choices = {"none", "static", "dynamic"}, .help = "Scale the loss so that small f16 gradients don't underflow; dynamic adapts the scale. A step with a non-finite gradient is skipped on every rank."},
    {MAY_CHANGE(loss_scaling.initial_scale_power), .fallback = value("16"), .range = between(0, 24), .help = "The scale starts at 2 to this power; static keeps it."},
    {MAY_CHANGE(loss_scaling.growth_factor), .fallback = value("2"), .range = {.min = 1, .max = 1024, .above_min = true}, .help = "Multiplies the scale after growth_interval clean steps in a row."},
    {MAY_CHANGE(loss_scaling.backoff_factor), .fallback = value("0.5"), .range = {.min = 0, .max = 1, .above_min = true, .below_max = true}, .help = "Multiplies the scale after an overflow."},
    {MAY_CHANGE(loss_scaling.growth_interval), .fallback = value("1000"), .range = between(1, 1e12), .help = "Clean steps in a row before the scale grows."},
    {MAY_CHANGE(loss_scaling.hysteresis), .fallback = value("2"), .range = between(1, 1000), .help = "The scale is lowered at the hysteresis-th overflow since it last grew (or since the start), and at each one after that."},
    {MAY_CHANGE(loss_scaling.min_scale), .fallback = value("1"), .range = between(1e-6, 1 << 24), .help = "The scale is never lowered below this."},
    {MAY_CHANGE(loss_scaling.on_min_scale), .fallback = value("abort"), .choices = {"abort", "hold"}, .help = "What an overflow at min_scale does. abort: ends the run. hold: skips the step and keeps the scale (64 skips in a row still end the run)."},
    {FREE(activation_checkpointing.mode), .fallback = value("none"), .choices = {"none", "selective", "full"}, .help = "What the backward pass recomputes instead of storing it: nothing, the outputs of norms and activations, or everything except the blocks' inputs. Results don't depend on it."},
    {FREE(activation_checkpointing.offload), .fallback = value("none"), .choices = {"none", "cpu", "nvme"}, .help = "With mode: full. The blocks' inputs are moved away in the forward pass and come back before their block's backward (docs/offload.md). nvme: to zero_optimization.offload_path (CPUs). cpu: to the host's memory (GPUs)."},
    {MUST_MATCH(optimizer.type), .fallback = value("adamw"), .choices = {"adamw", "adam", "sgd", "lion", "lamb", "lars", "muon", "adafactor", "dion"}, .help = "The update; equations and sources are in kernels/update.h, optim/matrices/muon.h, optim/matrices/dion.h and kernels/adafactor.h. muon and dion update the blocks' matrices and leave the rest to AdamW."},
    {MAY_CHANGE(optimizer.lr), .fallback = value("0.0003"), .range = kFloatFromZero, .help = "Highest learning rate; lr_scheduler shapes it."},
    {MAY_CHANGE(optimizer.betas), .fallback = derived("[0.9, 0.95]; lion [0.9, 0.99]"), .range = kFloatFraction, .help = "Decay of the averages of the gradient and of its square (lion: of the direction and of the average)."},
    {MAY_CHANGE(optimizer.eps), .fallback = derived("1e-08; lamb 1e-06; adafactor 2^-23"), .range = kPositiveFloat, .help = "Added to the square root of the second average. adafactor: the least root of a second moment (eps[0] of PyTorch)."},
    {MAY_CHANGE(optimizer.weight_decay), .fallback = value("0.1"), .range = kFloatFromZero, .help = "Weight decay of tensors with two or more dimensions. It is decoupled from the gradient; adam, sgd and lars add it to the gradient."},
    {MAY_CHANGE(optimizer.no_decay), .fallback = value("[]"), .help = "Glob patterns of parameter names without weight decay, such as [\"embedding.*\"]; each must match a trained parameter. Norms and biases never have weight decay."},
    {MAY_CHANGE(optimizer.groups), .fallback = value("[]"), .help = "Parameters that are updated with another learning rate, weight decay, betas or eps, or that are frozen. A parameter belongs to the first group that names it."},
    {MAY_CHANGE(optimizer.momentum), .fallback = derived("0.9; muon, dion 0.95"), .range = kFloatFraction, .help = "Decay of the average of the gradient. sgd: a resume can't change between 0, which keeps no average, and more."},
    {MAY_CHANGE(optimizer.trust_coefficient), .fallback = value("0.001"), .range = kPositiveFloat, .help = "Size of a tensor's step relative to its norm."},
    {MAY_CHANGE(optimizer.adamw_lr), .fallback = value("0.0003"), .range = kFloatFromZero, .help = "Highest learning rate of the parameters that AdamW updates."},
    {MUST_MATCH(optimizer.dion_rank_fraction), .fallback = value("0.25"), .range = {.min = 0, .max = 1, .above_min = true, .as_float = true}, .help = "Rank of dion's updates as a share of the shorter side of each matrix, rounded up (docs/optimizers.md)."},
    {MUST_MATCH(optimizer.dion_decoupled), .fallback = value("false"), .help = "Replicas (parallelism.data_parallel_replicate_degree) keep momenta of their own and add the factors of dion's update in place of gradients (docs/optimizers.md)."},
    {MUST_MATCH(optimizer.dion_average_interval), .fallback = value("0"), .range = between(0, 1e12), .help = "Replicas' momenta are averaged after each of this number of steps, which changes no update but by rounding. 0: never."},
    {MAY_CHANGE(optimizer.beta2_decay), .fallback = value("-0.8"), .range = between(-10, 0), .help = "Second moments move towards the new squares by update_number^beta2_decay."},
    {MAY_CHANGE(optimizer.clip_threshold), .fallback = value("1"), .range = kPositiveFloat, .help = "An update of a tensor with a larger root mean square is scaled down to it (d of PyTorch)."},
    {MAY_CHANGE(optimizer.min_parameter_rms), .fallback = value("0.001"), .range = kPositiveFloat, .help = "lr is multiplied by a tensor's root mean square, or by this if it is larger (eps[1] of PyTorch)."},
    {MAY_CHANGE(optimizer.muon_scale), .fallback = value("original"), .choices = {"original", "match_rms_adamw"}, .help = "Factor on lr for a matrix. original: sqrt(max(1, rows / columns)). match_rms_adamw (Moonlight): 0.2 x sqrt(max(rows, columns)), so that AdamW's lr and decay fit."},
    {MAY_CHANGE(optimizer.muon_coefficients), .fallback = value("jordan"), .choices = {"jordan", "polar_express"}, .help = "Polynomials of Newton-Schulz (equations: kernels/orthogonalise.h). jordan: the same in each of the five steps. polar_express: five different ones, which bring singular values nearer to 1 (arXiv:2505.16932)."},
    {MAY_CHANGE(optimizer.muon_dtype), .fallback = value("f32"), .choices = {"f32", "bf16"}, .help = "Type of the matrices that Newton-Schulz multiplies to orthogonalise an update. bf16 is muon's author's choice and fastest on GPUs (with allow_tf32, f32 is TF32 there)."},
    {MUST_MATCH(optimizer.eight_bit_states), .fallback = value("false"), .help = "Stores moments in 8 bits, with a scale for every 64 elements: 1.06 bytes per moment instead of 4 (arXiv:2110.02861; kernels/eight_bits.h)."},
    {MAY_CHANGE(optimizer.qk_clip_threshold), .fallback = value("0"), .range = kFloatFromZero, .help = "QK-clip: after an update, queries and keys of heads whose largest attention logit in the step is above this are scaled down (docs/stability.md); 100 is usual. 0: never."},
    {MAY_CHANGE(optimizer.qk_clip_alpha), .fallback = value("0.5"), .range = between(0, 1), .help = "Share of QK-clip's factor, as an exponent, that queries get; keys get the rest."},

    {MAY_CHANGE(lr_scheduler.type), .fallback = value("cosine"), .choices = {"constant", "linear", "cosine", "wsd", "inverse_sqrt"}, .help = "Shape after warm-up (equations: optim/lr_schedule.h). wsd holds the rate and decays it over the last wsd_decay_steps. inverse_sqrt never ends; decay_steps doesn't matter."},
    {MAY_CHANGE(lr_scheduler.warmup_ratio), .fallback = value("0"), .range = kFraction, .help = "Warm-up as a fraction of the run's steps, rounded up to a whole step. Used if warmup_steps isn't set."},
    {MAY_CHANGE(lr_scheduler.warmup_steps), .fallback = derived("warmup_ratio x training.max_steps"), .range = between(0, 1e12), .help = "Steps of linear warm-up. At most max_steps, and at most decay_steps if the rate decays."},
    {MAY_CHANGE(lr_scheduler.decay_steps), .fallback = derived("training.max_steps"), .range = between(1, 1e12), .help = "Step at which the rate reaches its minimum, counted from the start. It stays there."},
    {MAY_CHANGE(lr_scheduler.min_lr_ratio), .fallback = value("0.1"), .range = between(0, 1), .help = "Lowest rate as a fraction of lr."},
    {MAY_CHANGE(lr_scheduler.wsd_decay_shape), .fallback = value("linear"), .choices = {"linear", "cosine", "exponential", "minus_sqrt"}, .help = "How wsd decays the rate: with the share r of the decay done, the rest is 1 - r, (1 + cos(pi r)) / 2, 2 x 0.5^r - 1 or 1 - sqrt(r)."},
    {MAY_CHANGE(lr_scheduler.batch_size_scaling), .fallback = value("none"), .choices = {"none", "linear", "sqrt"}, .help = "In stages of data.stages with another batch size, lr is multiplied by the ratio to training.global_batch_size, or by its square root."},
    {MAY_CHANGE(lr_scheduler.wsd_decay_ratio), .fallback = value("0.2"), .range = between(0, 1), .help = "Length of wsd's decay as a fraction of decay_steps, rounded to whole steps."},
    {MAY_CHANGE(lr_scheduler.wsd_decay_tokens), .fallback = value("0"), .range = between(0, 1e18), .help = "Length of wsd's decay in tokens, rounded up to whole steps. 0: wsd_decay_ratio decides."},
    {MAY_CHANGE(lr_scheduler.wsd_decay_steps), .fallback = derived("with wsd by wsd_decay_tokens or wsd_decay_ratio, else 0"), .range = between(0, 1e12), .help = "Length of wsd's decay in steps. To decay from an older checkpoint: checkpoint.resume with its folder, another run.output_dir, and max_steps at the end of the decay."},

    {MAY_CHANGE(gradient_clipping.max_norm), .fallback = value("1"), .range = kFloatFromZero, .help = "Scale gradients down to this global norm. 0: no clipping."},

    {MAY_CHANGE(bad_steps.max_loss), .fallback = value("0"), .range = kFloatFromZero, .help = "A step whose loss is above this isn't applied. 0: no limit."},
    {MAY_CHANGE(bad_steps.max_grad_norm), .fallback = value("0"), .range = kFloatFromZero, .help = "A step whose gradient norm, before clipping, is above this isn't applied. 0: no limit."},
    {MAY_CHANGE(bad_steps.sigma), .fallback = value("0"), .range = between(0, kMillion), .help = "A step isn't applied if its loss or gradient norm is above mean + sigma x standard deviation of the window. 6 is usual. 0: never."},
    {MAY_CHANGE(bad_steps.window), .fallback = value("128"), .range = between(2, 100'000), .help = "Number of applied steps before this one that form the window. Until it is half full, no step is judged by it."},
    {MAY_CHANGE(bad_steps.skip_non_finite), .fallback = value("false"), .help = "true: a step whose loss or gradient isn't finite isn't applied. false: it ends the run with a report of where the first such value arose. With loss_scaling, an overflow lowers the scale instead."},
    {MAY_CHANGE(bad_steps.max_in_a_row), .fallback = value("10"), .range = between(1, kMillion), .help = "End the run with an error after this many steps in a row that weren't applied."},
    {MAY_CHANGE(bad_steps.rewind_after), .fallback = value("0"), .range = between(0, 1e6), .help = "After this many bad steps in a row, the run goes back to a checkpoint, removes later ones, and skips data. 0: never."},
    {MAY_CHANGE(bad_steps.rewind_steps), .fallback = value("0"), .range = between(0, 1e9), .help = "The newest checkpoint is used that is at least this many steps before the first bad step."},
    {MAY_CHANGE(bad_steps.skip_data_steps), .fallback = value("0"), .range = between(0, 1e9), .help = "Steps of data that are skipped, from the checkpoint on. 0: up to the last bad step."},
    {MAY_CHANGE(bad_steps.max_rewinds), .fallback = value("3"), .range = between(1, 1e6), .help = "The run ends with an error when it would rewind once more."},

    {MUST_MATCH(averages.type), .fallback = value("none"), .choices = {"none", "ema", "mean"}, .help = "Keep an average of the weights: ema, which forgets, or mean, of all updates since start_step (equations: optim/average.h). It is part of checkpoints; `sherd eval`, sample, chat, score and export use it with --average. 4 bytes per parameter, sharded like the optimizer's state."},
    {MAY_CHANGE(averages.decay), .fallback = value("0.999"), .range = {.min = 0, .max = 1, .below_max = true}, .help = "Of ema: average = decay x average + (1 - decay) x weights. Its half-life is ln 2 / (1 - decay) updates, about."},
    {MAY_CHANGE(averages.start_step), .fallback = value("0"), .range = between(0, 1e12), .help = "Updates before the first one that counts. Until then the average is the weights."},
    {MAY_CHANGE(averages.interval), .fallback = value("1"), .range = between(1, 1e9), .help = "Updates from one change of the average to the next."},
    {FREE(averages.evaluate), .fallback = value("false"), .help = "Evaluations print the average's loss, too (val_loss_average). The run's own loss stays that of the weights."},

    {FREE(checkpoint.interval), .fallback = value("1000"), .range = between(0, 1e12), .help = "Steps between checkpoints in {run.output_dir}/checkpoints. One more is saved after the last step, and one when SIGTERM, SIGUSR1 or SIGHUP ends the run (exit code 75: start it again). 0: none."},
    {FREE(checkpoint.async), .fallback = value("true"), .help = "Training continues while a checkpoint is written. false: it waits."},
    {FREE(checkpoint.staging_mib), .fallback = value("0"), .range = between(0, 1e9), .help = "MiB of memory in which a rank stages what it saves. 0: everything, so training only waits for a copy in memory. Less (at least 4): the next update waits until the rest is on disk."},
    {FREE(checkpoint.keep_last), .fallback = value("2"), .range = between(1, 1e9), .help = "Number of newest good checkpoints to keep. A new one is read back and verified before an older one is deleted."},
    {FREE(checkpoint.keep_every), .fallback = value("0"), .range = between(0, 1e12), .help = "Also keep checkpoints of steps that are multiples of this. 0: none."},
    {FREE(checkpoint.keep_best), .fallback = value("0"), .range = between(0, 1e9), .help = "Also keep this many checkpoints with the lowest validation losses. Commands accept {run.output_dir}/best for the best. 0: none."},
    {FREE(checkpoint.max_failed_saves), .fallback = value("3"), .range = between(0, 1e9), .help = "Number of failed saves in a row after which the run ends with an error. 0: it never ends for that reason; only its last save must succeed."},
    {FREE(checkpoint.on_interrupt), .fallback = derived("true, or false with interval: 0"), .help = "Ctrl-C saves before the run ends. A second Ctrl-C ends it immediately."},
    {FREE(checkpoint.stop_deadline), .fallback = value("120"), .range = between(1, 86400), .help = "Seconds from SIGTERM, SIGUSR1 or SIGHUP until the process ends, saved or not."},
    {FREE(checkpoint.max_minutes), .fallback = value("0"), .range = between(0, kMillion), .help = "Minutes after the start of the program when the run saves after its current step and ends (exit code 75: start it again). Leave time for that step and its save before the scheduler's limit. 0: no limit."},
    {FREE(checkpoint.resume), .fallback = value("auto"), .help = "auto: continue from the newest good checkpoint of {run.output_dir}, or start at step 0 if there is none. never: start at step 0; existing checkpoints are an error. A path: continue from that checkpoint, or, once the run itself has saved, from its own newest."},
    {FREE(checkpoint.init_from), .fallback = derived("model.from with an adapter, else empty"), .help = "Folder of a checkpoint, of a Hugging Face model with safetensors, or of an adapter as PEFT writes it. Starts a new run (step 0, fresh optimizer) from its weights; an adapter continues as the adapter of model.from. Used if there is nothing to resume. With an adapter it is always used, since a checkpoint then contains only what is trained."},

    {FREE(memory.device_memory), .fallback = value("\"\""), .help = "Memory of one rank's device, such as 80GiB (B; KB, MB, GB, TB; KiB, MiB, GiB, TiB). Empty: on a CPU, all ranks of the process share the memory of this machine or its control group."},
    {FREE(memory.server_memory), .fallback = value("\"\""), .help = "The same of a rank that is a parameter server. Empty: device_memory."},
    {FREE(memory.on_exceed), .fallback = value("abort"), .choices = {"abort", "warn"}, .help = "abort: a run that needs more memory ends before its first step. warn: it warns and continues."},

    {FREE(metrics.log_interval), .fallback = value("10"), .range = between(1, 1e12), .help = "Steps between printed lines. metrics.jsonl has every step."},
    {FREE(metrics.log_max_attention_logit), .fallback = value("false"), .help = "Write the step's largest attention logit to metrics.jsonl, overall and of each layer (docs/stability.md). On GPUs it is computed again by a kernel of its own. Training stays bit-identical."},
    {FREE(metrics.trace_steps), .fallback = value("[]"), .range = between(1, 1e12), .help = "First and last step, counted from 1, of a Chrome trace of every stream of every rank."},
    {FREE(metrics.source_losses), .fallback = value("false"), .help = "Also report the training loss of each source of data.sources."},
    {FREE(metrics.tensorboard), .fallback = value("true"), .help = "Curves for TensorBoard in {run.output_dir}/tensorboard: losses, gradient norm, learning rate, speed, memory, the last sample. metrics.jsonl is the exact record."},

    {FREE(hooks.on_start), .fallback = value("\"\""), .help = "Shell command, run before the first step. docs/hooks.md says what it gets. Empty: none."},
    {FREE(hooks.on_step), .fallback = value("\"\""), .help = "Command after every step_interval-th step. If one is still waiting, the new one replaces it."},
    {FREE(hooks.step_interval), .fallback = value("100"), .range = between(1, 1e12), .help = "Steps between runs of on_step."},
    {FREE(hooks.on_evaluation), .fallback = value("\"\""), .help = "Command after each evaluation."},
    {FREE(hooks.on_save), .fallback = value("\"\""), .help = "Command after a checkpoint is complete, such as an upload. Until it has succeeded or all retries have failed, the checkpoint isn't deleted."},
    {FREE(hooks.on_end), .fallback = value("\"\""), .help = "Command after a run that ends with code 0, 75 or 130."},
    {FREE(hooks.on_failure), .fallback = value("\"\""), .help = "Command after a run that ends with another code. Recipes and data that are refused before the first step start none."},
    {FREE(hooks.timeout), .fallback = value("600"), .range = between(1, 604800), .help = "Seconds after which a command and the processes of its group are killed."},
    {FREE(hooks.retries), .fallback = value("3"), .range = between(0, 1000), .help = "How often on_save is tried again after a failure: after 1, 2, 4, ... seconds, at most 60."},

    {MUST_MATCH(preference.loss), .fallback = value("none"), .choices = {"none", "sigmoid", "robust", "hinge", "ipo", "apo_zero", "apo_down", "orpo", "simpo", "kto"}, .help = "Train on preferences, by TRL's names: sigmoid is DPO (docs/preferences.md). Rows of data.format chat then have prompt, chosen and rejected; with kto prompt, completion and label.", .demand = "losses are sigmoid, which is DPO, robust, hinge, ipo, apo_zero, apo_down, orpo, simpo and kto; none leaves preferences out"},
    {MAY_CHANGE(preference.beta), .fallback = value("0.1"), .range = {.min = 0, .max = 1e6, .above_min = true}, .help = "How closely the weights stay to the reference. orpo: factor of its second term."},
    {MAY_CHANGE(preference.label_smoothing), .fallback = value("0"), .range = {.min = 0, .max = 0.5, .below_max = true}, .help = "The fraction of labels assumed to be wrong."},
    {MAY_CHANGE(preference.simpo_gamma), .fallback = value("0.5"), .range = {.min = 0, .max = 1e6}, .help = "The margin between the rewards."},
    {MAY_CHANGE(preference.desirable_weight), .fallback = value("1"), .range = {.min = 0, .max = 1e6}, .help = "Factor of the loss of wanted answers."},
    {MAY_CHANGE(preference.undesirable_weight), .fallback = value("1"), .range = {.min = 0, .max = 1e6}, .help = "Factor of the loss of unwanted answers."},

    {MAY_CHANGE(distillation.teacher), .fallback = value("\"\""), .help = "Also learn what a teacher finds likely (docs/distillation.md): the file that `sherd score --save-top` wrote with this recipe. Empty: no teacher."},
    {MAY_CHANGE(distillation.top_k), .fallback = value("32"), .range = between(1, 512), .help = "How many of the teacher's likeliest tokens are learned from, for each token."},
    {MAY_CHANGE(distillation.weight), .fallback = value("0.5"), .range = {.min = 0, .max = 1, .as_float = true}, .help = "The teacher's part of the loss; the text's own part is 1 minus it."},
    {MAY_CHANGE(distillation.temperature), .fallback = value("1"), .range = {.min = 0.01, .max = 100, .as_float = true}, .help = "Divides the logits of teacher and model in the teacher's part, whose gradient is multiplied by its square."},

    {MUST_MATCH(diloco.sync_every), .fallback = value("0"), .range = between(0, 1e9), .help = "Replicas (parallelism.data_parallel_replicate_degree) train apart. They exchange what has changed once per this number of steps (DiLoCo). 0: they add their gradients in every step."},
    {MUST_MATCH(diloco.outer_lr), .fallback = value("0.7"), .range = kFloatFromZero, .help = "Rate of the outer update, which follows the mean change of the replicas."},
    {MUST_MATCH(diloco.outer_momentum), .fallback = value("0.9"), .range = kFloatFraction, .help = "Nesterov momentum of the outer update. 0: none, and no memory for it."},
    {MUST_MATCH(diloco.num_fragments), .fallback = value("1"), .range = between(1, 10'000), .help = "Parts of the model that are exchanged in turn, one every sync_every / num_fragments steps. Must divide sync_every."},
    {MUST_MATCH(diloco.fragment_sync_delay), .fallback = value("0"), .range = between(0, 1e9), .help = "Steps during which an exchange may last. It begins as many steps earlier, and replicas train on meanwhile."},
    {MUST_MATCH(diloco.fragment_update_alpha), .fallback = value("0"), .range = {.min = 0, .max = 1}, .help = "How much of its own weights a replica keeps after an exchange. 0: it takes the global ones. 1: it never takes them."},
    {MUST_MATCH(diloco.quantize), .fallback = value("none"), .choices = {"none", "int8_block64", "int4_block64"}, .help = "Bits of each number that replicas exchange, in blocks of 64 with a common scale. none: FP32."},

    {MUST_MATCH(powersgd.rank), .fallback = value("0"), .range = between(0, 1024), .help = "Replicas (parallelism.data_parallel_replicate_degree) add low-rank factors of their gradients, with this number of vectors for each matrix, and feed back what is left (PowerSGD, docs/power_sgd.md). 0: they add the gradients."},
    {MUST_MATCH(powersgd.start_step), .fallback = value("10"), .range = between(0, 1e12), .help = "Steps before it add whole gradients. A tenth of the run is usual."},
    {MUST_MATCH(powersgd.min_compression_rate), .fallback = value("2"), .range = {.min = 1, .max = 1e6}, .help = "A parameter is sent whole unless its factors have this many times fewer elements."},
    {MUST_MATCH(powersgd.seed), .fallback = value("0"), .range = between(0, 4294967295.0), .help = "Of the random vectors with which factors begin."},
    {MUST_MATCH(dgc.compress_ratio), .fallback = value("0"), .range = {.min = 0, .max = 1, .below_max = true}, .help = "Replicas (parallelism.data_parallel_replicate_degree) exchange this fraction of what their gradients add up to, the largest elements, and keep the rest (deep gradient compression, docs/dgc.md). SGD only; 0.001 is usual. 0: they add the gradients."},
    {MUST_MATCH(dgc.sample_ratio), .fallback = value("0.01"), .range = {.min = 0, .max = 1, .above_min = true}, .help = "The fraction of elements by which the threshold of the largest ones is estimated. 1: it is exact."},
    {MUST_MATCH(dgc.compress_lower_bound), .fallback = value("0.8"), .range = {.min = 0, .max = 1, .above_min = true, .as_float = true}, .help = "If fewer than this times the wanted elements reach the threshold, it is multiplied by it."},
    {MUST_MATCH(dgc.compress_upper_bound), .fallback = value("1.3"), .range = {.min = 1, .max = 100, .as_float = true}, .help = "If more than this times the wanted elements reach the threshold, it is multiplied by it."},
    {MUST_MATCH(dgc.max_adaptation_iters), .fallback = value("10"), .range = between(0, 1000), .help = "How often the threshold is corrected, at most."},
    {MUST_MATCH(dgc.warmup_epochs), .fallback = value("0"), .range = between(0, 1e6), .help = "Epochs that send more: warmup_coeff^(epoch + 1), counted from 0."},
    {MUST_MATCH(dgc.warmup_coeff), .fallback = value("0"), .range = {.min = 0, .max = 1, .below_max = true}, .help = "Of warmup_epochs. 0: compress_ratio^(1 / (warmup_epochs + 1))."},
    {MUST_MATCH(dgc.clip), .fallback = value("none"), .choices = {"none", "norm", "value"}, .help = "Clip each replica's mean gradient before it is added up: the norm of each parameter, to clip_threshold / sqrt(replicas), or each element, to clip_threshold."},
    {MUST_MATCH(dgc.clip_threshold), .fallback = value("1"), .range = kPositiveFloat, .help = "Of clip."},
    {MUST_MATCH(dgc.momentum_correction), .fallback = value("true"), .help = "Add up what momentum makes of gradients, on each replica. The optimizer then has no momentum of its own. false: add up the gradients."},
    {MUST_MATCH(dgc.momentum_masking), .fallback = value("true"), .help = "An element that was sent loses its momentum on that replica."},
    {MUST_MATCH(mtp.num_layers), .fallback = value("0"), .range = between(0, 16), .help = "Layers of multi-token prediction after the model's (docs/mtp.md): in training, each predicts one more token. 0: none."},
    {MAY_CHANGE(mtp.loss_scaling_factor), .fallback = value("0.1"), .range = kFloatFromZero, .help = "The mean of these layers' losses times this is added to the loss."},
};
// clang-format on

}  // namespace

const std::vector<Field>& recipe_fields() {
  return kFields;
}

int field_index(std::string_view key) {
  for (std::size_t i = 0; i < kFields.size(); ++i) {
    if (kFields[i].key == key) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace sherd::engine
