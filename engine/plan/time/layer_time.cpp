// The time of one layer and of the head, from the shapes of their kernels.
//
// Legend: T tokens, D width, U and F outputs and inputs of the feed-forward's two matmuls.
#include <algorithm>

#include "engine/plan/time/step_time.h"

namespace sherd::engine {
namespace {

struct Parts {
  const StepRates& rates;
  const StepShape& step;
  double element = static_cast<double>(size_of(step.dtype));
  std::int64_t tokens = step.layout.sequences * step.seq_length / step.layout.context;

  double matmul(std::int64_t m, std::int64_t n, std::int64_t k, double times = 1.0) const {
    const double md = static_cast<double>(m), nd = static_cast<double>(n);
    const double kd = static_cast<double>(k);
    return rates.seconds(Launch{.kernel = "matmul",
                                .kind = LaunchKind::kMatmul,
                                .read = static_cast<std::int64_t>(element * (md * kd + nd * kd)),
                                .written = static_cast<std::int64_t>(element * times * md * nd),
                                .flops = 2.0 * md * nd * kd,
                                .dtype = step.dtype,
                                .m = m,
                                .n = n,
                                .k = k});
  }
  double memory(double bytes, std::string_view kernel = "memory") const {
    if (bytes == 0.0) return 0.0;
    return rates.seconds(
        Launch{.kernel = kernel, .read = static_cast<std::int64_t>(bytes), .dtype = step.dtype});
  }
  // [T, n] over k, its input's and its weight's gradient.
  void add(LayerTime& time, std::int64_t rows, std::int64_t n, std::int64_t k) const {
    time.matmuls_forward += matmul(rows, n, k);
    time.matmuls_input += matmul(rows, k, n);
    time.matmuls_weight += matmul(n, k, rows);
    time.launches += 3.0;
  }
};

// Our own attention, which takes other ranks' keys, multiplies without tensor cores on GPUs.
DType attention_type(const StepShape& step) {
  const bool cut =
      step.layout.context > 1 && step.layout.context_method != model::ContextMethod::kUlysses;
  return cut && !step.form.fast_cut_attention ? DType::kF32 : step.dtype;
}

// Two products forward and five backward (the scores again), of each query and the keys it sees.
void add_attention(const Parts& of, LayerTime& time) {
  const auto& [model, layout, form, seq] =
      std::tie(of.step.model, of.step.layout, of.step.form, of.step.seq_length);
  const double heads = static_cast<double>(model.query_heads) / static_cast<double>(layout.tensor);
  const auto s = static_cast<double>(seq), c = static_cast<double>(layout.context);
  // If ranks have successive positions, the last one's queries see the most keys.
  const bool in_order = layout.context_method == model::ContextMethod::kAllGather;
  const double pairs = static_cast<double>(layout.sequences) * heads * s *
                       (form.plain_attention ? s : (s + 1.0) / 2.0) / c *
                       (in_order ? (2.0 * c - 1.0) / c : 1.0);
  const double flops = 4.0 * pairs * static_cast<double>(model.head_width);
  if (!form.plain_attention) {
    Launch launch{.kernel = "attention",
                  .kind = LaunchKind::kAttention,
                  .flops = flops,
                  .dtype = attention_type(of.step),
                  .k = model.head_width,
                  .deterministic = of.step.deterministic};
    time.attention_forward = of.rates.seconds(launch);
    launch.backward = true;
    // Ours, for queries and for keys, computes the scores twice.
    launch.flops = (launch.dtype == of.step.dtype ? 2.5 : 3.5) * flops;
    time.attention_backward = of.rates.seconds(launch);
    time.launches += 2.0;
    return;
  }
  const auto rows = static_cast<std::int64_t>(pairs / s);
  const double products =
      of.matmul(rows, seq, model.head_width) + of.matmul(rows, model.head_width, seq);
  // Of 16-bit scores: the softmax and its dropout read and write them twice, with a mask of bytes;
  // their gradients three times.
  const double dropout = model.dropout ? 1.0 : 0.0;
  time.attention_forward = products + of.memory(pairs * (4.0 + 5.0 * dropout));
  time.attention_backward = 2.0 * products + of.memory(pairs * (6.0 + 5.0 * dropout));
  time.launches += 12.0;
}

// Bytes of element-wise kernels, in elements of the compute type: norms and additions on the
// residual stream's rows, rotation and activation on what a tensor rank has of the others.
void add_memory(const Parts& of, LayerTime& time, std::int64_t ffn) {
  const auto& model = of.step.model;
  const auto& layout = of.step.layout;
  const auto t = static_cast<double>(layout.tensor), d = static_cast<double>(model.width);
  const auto rows = static_cast<double>(of.tokens);
  const double own = layout.sequence_parallel ? rows / t : rows;
  const double dropped = model.dropout ? 5.0 * d : 0.0;
  const double heads = static_cast<double>(model.qkv_width()) / t;
  const double active = static_cast<double>(model.up_width(ffn) + ffn) / t;
  const double share = of.step.form.memory_share * of.element;
  time.memory_forward =
      of.memory(share * (own * (10.0 * d + dropped) + rows * (2.0 * heads + active)));
  time.memory_backward =
      of.memory(share * own * 8.0 * d, "norm_backward") +
      of.memory(share * (own * (4.0 * d + dropped) + rows * (2.0 * heads + active + 0.5 * active)));
  time.launches += 18.0;
}

// A rank has as many rows as it sends away, if all experts are chosen equally often. Tensor ranks
// have a part of each one's width.
void add_experts(const Parts& of, LayerTime& time) {
  const ModelSize& model = of.step.model;
  const std::int64_t experts = std::max<std::int64_t>(1, model.experts / of.step.layout.expert);
  const auto rows = static_cast<std::int64_t>(static_cast<double>(of.tokens * model.per_token) *
                                              of.step.imbalance);
  const std::int64_t of_one = std::max<std::int64_t>(1, rows / experts);
  const std::int64_t t = of.step.layout.tensor;
  const std::int64_t f = model.expert_width / t, up = model.up_width(f);
  time.matmuls_forward += of.matmul(rows, up, model.width) + of.matmul(rows, model.width, f);
  time.matmuls_input += of.matmul(rows, model.width, up) + of.matmul(rows, f, model.width);
  time.matmuls_weight +=
      of.matmul(up * experts, model.width, of_one) + of.matmul(model.width * experts, f, of_one);
  if (model.shared_width > 0) {
    of.add(time, of.tokens, model.up_width(model.shared_width) / t, model.width);
    of.add(time, of.tokens, model.width, model.shared_width / t);
  }
  // Rows are copied into the order of experts and added back, with their gradients.
  const double moved = 4.0 * of.element * static_cast<double>(rows * model.width);
  const double active = of.element * static_cast<double>(rows * (up + f));
  time.memory_forward += of.memory(moved + active);
  time.memory_backward += of.memory(moved + 1.5 * active);
  time.launches += 30.0;
}

// Recomputed blocks end before their last matmul, whose result nobody needs.
double recomputed(const LayerTime& time, const StepShape& step, double last_matmul) {
  switch (step.layout.again) {
    case Again::kNothing:
      return 0.0;
    case Again::kNormsAndActivations:
      return 0.5 * time.memory_forward;
    case Again::kAttention:
      return time.attention_forward;
    case Again::kBlocks:
      break;
  }
  return time.forward() - (step.form.whole_recompute ? 0.0 : last_matmul);
}

}  // namespace

double ModelSize::attention_weights() const {
  if (latent_weights > 0.0) return latent_weights;
  return static_cast<double>(width * qkv_width() + width * query_heads * head_width);
}
double ModelSize::mlp_weights(std::int64_t ffn) const {
  return static_cast<double>(width * (up_width(ffn) + ffn));
}
double ModelSize::weights() const {
  const double mixture = static_cast<double>(experts) * mlp_weights(expert_width) +
                         mlp_weights(shared_width) + static_cast<double>(experts * width);
  return static_cast<double>(layers) * attention_weights() +
         static_cast<double>(layers - mixtures) * mlp_weights(ffn_width) +
         static_cast<double>(mixtures) * mixture + (tied ? 1.0 : 2.0) * end_weights();
}

double LayerTime::forward() const {
  return matmuls_forward + attention_forward + memory_forward + tensor + context + expert;
}
double LayerTime::backward() const {
  return matmuls_input + matmuls_weight + attention_backward + memory_backward + tensor +
         tensor_again + context + expert + again;
}

double StepTimes::exchange(std::string_view collective, double bytes, std::int64_t ranks,
                           std::int64_t stride) const {
  if (ranks <= 1) return 0.0;
  const std::int64_t on_one = std::clamp<std::int64_t>(per_machine_ / stride, 1, ranks);
  const auto machines = static_cast<double>((ranks + on_one - 1) / on_one);
  return rates_.seconds(GroupExchange{collective, bytes, static_cast<double>(ranks), machines,
                                      static_cast<double>(per_machine_)});
}

LayerTime StepTimes::layer(const StepShape& step, bool mixture) {
  const Parts of{rates_, step};
  const auto& [model, layout] = std::tie(step.model, step.layout);
  const std::int64_t t = layout.tensor, d = model.width;
  LayerTime time;
  of.add(time, of.tokens, model.qkv_width() / t, d);
  of.add(time, of.tokens, d, model.query_heads * model.head_width / t);
  add_attention(of, time);
  add_memory(of, time, mixture ? 0 : model.ffn_width);
  if (mixture) {
    add_experts(of, time);
  } else {
    of.add(time, of.tokens, model.up_width(model.ffn_width) / t, d);
    of.add(time, of.tokens, d, model.ffn_width / t);
  }
  add_exchanges(step, time, mixture);
  const double last = mixture ? 0.0 : of.matmul(of.tokens, d, model.ffn_width / t);
  time.again = recomputed(time, step, last);
  if (layout.again == Again::kBlocks) time.launches *= 1.4;
  return time;
}

void StepTimes::add_exchanges(const StepShape& step, LayerTime& time, bool mixture) const {
  const auto& [model, layout] = std::tie(step.model, step.layout);
  const Parts of{rates_, step};
  const std::int64_t t = layout.tensor, c = layout.context;
  const double rows = of.element * static_cast<double>(of.tokens);
  const double stream = rows * static_cast<double>(model.width);
  if (t > 1) {
    const double once = layout.sequence_parallel ? exchange("all_gather", stream, t, 1) +
                                                       exchange("reduce_scatter", stream, t, 1)
                                                 : exchange("all_reduce", stream, t, 1);
    time.tensor = 2.0 * once;
    if (layout.sequence_parallel && !step.form.hides_second_gathers) {
      time.tensor_again = 2.0 * exchange("all_gather", stream, t, 1);
    }
  }
  if (c > 1) {
    const double heads =
        static_cast<double>((model.qkv_width() + model.query_heads * model.head_width) / t);
    const double keys = static_cast<double>(2 * model.kv_heads * model.head_width) /
                        static_cast<double>(t) * static_cast<double>(c);
    // Keys and values come once forward; backward they come again, and their gradients go back.
    const double gathered = 1.5 * exchange("all_gather", rows * keys, c, t);
    switch (layout.context_method) {
      case model::ContextMethod::kUlysses:
        time.context = 2.0 * exchange("all_to_all", rows * heads / 2.0, c, t) +
                       of.memory(4.0 * rows * heads);  // put in order, before and after
        break;
      case model::ContextMethod::kAllGather:
        time.context = gathered;
        break;
      case model::ContextMethod::kRing:
        time.context = std::max(0.0, gathered - time.attention_forward);
        break;
    }
  }
  if (mixture && layout.expert > 1) {
    const double sent = stream * static_cast<double>(model.per_token) * step.imbalance;
    const std::int64_t stride = t * c * (layout.shard / layout.expert);
    time.expert = 2.0 * exchange("all_to_all", sent, layout.expert, stride);
  }
}

LayerTime StepTimes::head(const StepShape& step) {
  const Parts of{rates_, step};
  const std::int64_t columns = step.model.vocab_size / step.layout.tensor;
  const std::int64_t passes = step.model.head_passes, tokens = passes * of.tokens;
  LayerTime time;
  of.add(time, tokens, columns, step.model.width);
  const double logits = of.element * static_cast<double>(tokens * columns);
  time.memory_backward = of.memory(3.0 * logits * step.form.memory_share, "cross_entropy");
  time.launches += 4.0 * static_cast<double>(passes);
  return time;
}

}  // namespace sherd::engine
