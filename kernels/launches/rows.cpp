#include <algorithm>

#include "kernels/device_common/norm_blocks.h"
#include "kernels/device_common/pointwise.h"
#include "kernels/launches/memory.h"

namespace sherd::kernels::launches {

Launches fill_zero(const Tensor& x) {
  return flat("fill_zero", x.numel, 0, x.bytes());
}
Launches fill_constant(const Tensor& out, float) {
  return flat("fill_constant", out.numel, 0, out.bytes());
}
Launches cast(const ConstTensor& x, const Tensor& y) {
  return flat(x.dtype == y.dtype ? "copy" : "cast", x.numel, x.bytes(), y.bytes());
}
Launches add(const ConstTensor& x, const Tensor& accumulator) {
  return flat("add", x.numel, bytes_of(x, accumulator), accumulator.bytes());
}
Launches move_towards(const ConstTensor& x, float, const Tensor& average) {
  return flat("move_towards", x.numel, bytes_of(x, average), average.bytes());
}
Launches exchange(const Tensor& a, const Tensor& b) {
  return flat("exchange", a.numel, bytes_of(a, b), bytes_of(a, b));
}
Launches residual_add(const ConstTensor& residual, const ConstTensor& branch, const Dropout&, float,
                      const Tensor& out) {
  return flat("residual_add", out.numel, bytes_of(residual, branch), out.bytes());
}
Launches dropout_backward(const ConstTensor& dy, const Dropout&, float, const Tensor& dx) {
  return flat("dropout_backward", dx.numel, dy.bytes(), dx.bytes());
}

// A block of elements leaves one f64.
Launches sum_of_squares(const ConstTensor& x, const Tensor& out, const Tensor&) {
  const std::int64_t partial =
      (x.numel + device_common::kSumBlock - 1) / device_common::kSumBlock * kDouble;
  return flat("sum_of_squares", x.numel, x.bytes(), partial) +
         Launches{memory("sum_of_squares (partial sums)", partial, out.bytes())};
}
Launches sum(const ConstTensor& x, const Tensor& out, bool add) {
  return {memory("sum", x.bytes() + (add ? out.bytes() : 0), out.bytes())};
}
Launches fill_normal(const Tensor& out, const RandomAddress&, std::int64_t, float, float) {
  return flat("fill_normal", out.numel, 0, out.bytes());
}
Launches fill_uniform(const Tensor& out, const RandomAddress&, std::int64_t, float) {
  return flat("fill_uniform", out.numel, 0, out.bytes());
}

Launches activation_forward(const ActivationForward& args) {
  return flat("activation_forward", args.y.numel, args.x.bytes(), args.y.bytes());
}
Launches activation_backward(const ActivationBackward& args) {
  return flat("activation_backward", args.dy.numel, bytes_of(args.x, args.dy), args.dx.bytes());
}

Launches norm_forward(const NormForward& args) {
  return flat("norm_forward", args.shape.tokens,
              bytes_of(args.residual, args.branch, args.weight, args.bias),
              bytes_of(args.residual_out, args.y, args.mean, args.rstd));
}

// Rows of at most two packs of 16 bytes for each of 512 threads stay in registers
// (kernels/cuda/norm.cu).
Launches norm_backward(const NormBackward& args) {
  const std::int64_t width = args.shape.width, tokens = args.shape.tokens;
  const std::int64_t blocks = tokens > 0 ? device_common::RowBlocks(tokens, width).count() : 0;
  const std::int64_t partial = blocks * 2 * width * kFloat;
  const bool centred = args.shape.kind == NormKind::kLayerNorm;
  const std::int64_t statistics = (centred ? 2 : 1) * tokens * kFloat;
  const std::int64_t rows = bytes_of(args.residual, args.dy) + statistics;
  const std::int64_t read = rows + bytes_of(args.weight, args.d_residual_out);
  const std::int64_t written = bytes_of(args.d_residual_in, args.d_branch);
  const std::int64_t pack = 16 / static_cast<std::int64_t>(size_of(args.dy.dtype));
  const bool in_registers = width <= (width % pack == 0 ? pack : 1) * 2 * 512;
  Launches launches;
  if (tokens > 0 && in_registers) {
    launches.push_back(memory("norm_backward", read, written + partial));
  } else if (tokens > 0) {
    launches.push_back(memory("norm_backward (columns)", rows, partial));
    launches.push_back(memory("norm_backward", read, written));
  }
  for (const Tensor& out : {args.dweight, args.dbias}) {
    if (!out) continue;
    launches.push_back(
        add_row_blocks("norm_backward (weights)", blocks, out, args.add_to_weight_gradients));
  }
  return launches;
}

Launches qk_norm_sums(const QkNormSums& args) {
  const std::int64_t rows = args.qkv.bytes() / args.shape.packed_width() * args.shape.raw_width();
  return {memory("qk_norm_sums", rows + args.row_sums.bytes(), args.sums.bytes())};
}
Launches qk_norm_forward(const QkNormForward& args) {
  return {memory("qk_norm_forward",
                 args.raw.bytes() +
                     bytes_of(args.query_weight, args.key_weight, args.row_sums, args.row_squares),
                 2 * args.raw.bytes() + bytes_of(args.mean, args.rstd))};
}
Launches qk_norm_backward_sums(const QkNormBackward& args) {
  return {memory(
      "qk_norm_backward_sums",
      2 * args.raw.bytes() + bytes_of(args.mean, args.rstd, args.query_weight, args.key_weight),
      args.row_sums.bytes())};
}
Launches qk_norm_backward(const QkNormBackward& args) {
  const std::int64_t rows = 2 * args.raw.bytes() + bytes_of(args.mean, args.rstd);
  const Launch own =
      memory("qk_norm_backward", rows + bytes_of(args.query_weight, args.key_weight, args.row_sums),
             args.raw.bytes());
  if (args.shape.weightless) return {own};
  const std::int64_t weights = args.shape.query_weights() + args.shape.key_weights();
  const std::int64_t blocks = device_common::RowBlocks(args.shape.tokens, weights).count();
  const char* sums = "qk_norm_backward (weights)";
  return {memory("qk_norm_backward (blocks)", rows, blocks * weights * kFloat), own,
          add_row_blocks(sums, blocks, args.d_query_weight, false),
          add_row_blocks(sums, blocks, args.d_key_weight, false)};
}

Launches join_latent_heads(const LatentHeads&, const ConstTensor& query,
                           const ConstTensor& keys_values, const ConstTensor& rotated_key,
                           const Tensor& qkv) {
  return flat("join_latent_heads", qkv.numel, bytes_of(query, keys_values, rotated_key),
              qkv.bytes());
}
// The rotated keys' gradients are R of the key's K columns of each head.
Launches split_latent_heads(const LatentHeads& shape, const ConstTensor& d_qkv,
                            const Tensor& d_query, const Tensor& d_keys_values, const Tensor&) {
  const std::int64_t sums = shape.tokens * shape.rotated, parts = bytes_of(d_query, d_keys_values);
  const auto size = static_cast<std::int64_t>(size_of(d_qkv.dtype));
  return flat("split_latent_heads", d_query.numel, parts, parts) +
         flat("split_latent_heads (rotated keys)", sums, sums * shape.heads * size, sums * size);
}

Launches rotary_table(const Tensor& table, std::int64_t, const std::vector<double>&, double) {
  return {memory("rotary_table", 0, table.bytes())};
}
Launches query_growth_table(const Tensor& table, std::int64_t, const RotaryFrequencies&) {
  return {memory("query_growth_table", 0, table.bytes())};
}
Launches rotary(const Rotary& args) {
  const std::int64_t heads = args.query_heads + (args.queries_only ? 0 : args.kv_heads);
  const std::int64_t turned = args.qkv.bytes() / (args.query_heads + 2 * args.kv_heads) * heads;
  return flat("rotary", turned, turned + bytes_of(args.table, args.token_positions), turned);
}

// Of the tables each row that a token names, at most all.
Launches embedding_forward(const EmbeddingForward& args) {
  const std::int64_t named = std::min(args.token_weight.bytes(), args.y.bytes());
  const std::int64_t positions = std::min(args.position_weight.bytes(), args.y.bytes());
  return flat("embedding_forward", args.y.numel, args.tokens.bytes() + named + positions,
              args.y.bytes());
}

// What isn't named is zeros already; the rows that are get their sums.
Launches embedding_backward(const EmbeddingBackward& args) {
  const std::int64_t tokens = args.sequences * args.positions, order = tokens * kFloat;
  const std::int64_t row =
      args.width * static_cast<std::int64_t>(size_of(args.d_token_weight.dtype));
  const std::int64_t named = std::min(args.d_token_weight.bytes(), tokens * row);
  Launches launches = {memory("embedding_backward (order)", args.tokens.bytes(), order)};
  if (!args.add_to_token_gradient) launches = launches + fill_zero(args.d_token_weight);
  launches.push_back(memory(
      "embedding_backward",
      args.dy.bytes() + args.tokens.bytes() + order + (args.add_to_token_gradient ? named : 0),
      named));
  if (args.d_position_weight) {
    launches.push_back(
        memory("embedding_backward (positions)", args.dy.bytes(), args.d_position_weight.bytes()));
  }
  return launches;
}

Launches cross_entropy(const CrossEntropy& args) {
  const Teacher& teacher = args.teacher;
  return {memory("cross_entropy",
                 args.logits.bytes() + bytes_of(args.targets, teacher.ids, teacher.probabilities),
                 args.losses.bytes() + args.z_loss.losses.bytes() + teacher.divergences.bytes() +
                     (args.gradient ? args.logits.bytes() : 0))};
}
Launches shape_logits(const LogitsForm&, const Tensor& logits) {
  return flat("shape_logits", logits.numel, logits.bytes(), logits.bytes());
}
Launches logit_maxima(const CutCrossEntropy& args) {
  return {memory("logit_maxima", args.logits.bytes(), args.tokens * kFloat)};
}
Launches exponential_sums(const CutCrossEntropy& args) {
  const std::int64_t two_sums = 2 * args.tokens * kFloat;
  Launches launches = {
      memory("exponential_sums", bytes_of(args.logits, args.targets, args.maxima), two_sums)};
  if (args.teacher) {
    launches.push_back(memory("teacher_sums",
                              bytes_of(args.logits, args.targets, args.maxima, args.teacher.ids,
                                       args.teacher.probabilities),
                              two_sums));
  }
  return launches;
}
Launches cut_cross_entropy(const CutCrossEntropy& args) {
  const std::int64_t gradient = args.gradient ? args.logits.bytes() : 0;
  return {memory("cut_cross_entropy",
                 gradient + bytes_of(args.targets, args.sums) +
                     (args.gradient ? args.maxima.bytes() : 0) +
                     bytes_of(args.teacher.ids, args.teacher.probabilities),
                 gradient + args.losses.bytes() + args.z_loss.losses.bytes() +
                     args.teacher.divergences.bytes())};
}

Launches add_to_columns(const Columns&, const ConstTensor& z, float, const Tensor& y) {
  const std::int64_t touched = z.numel * static_cast<std::int64_t>(size_of(y.dtype));
  return flat("add_to_columns", z.numel, z.bytes() + touched, touched);
}
Launches take_columns(const Columns&, const ConstTensor& y, float, const Tensor& z) {
  const std::int64_t touched = z.numel * static_cast<std::int64_t>(size_of(y.dtype));
  return flat("take_columns", z.numel, touched, z.bytes());
}
Launches store_columns(const Columns&, const ConstTensor& values, const Tensor& y) {
  return flat("store_columns", values.numel, values.bytes(),
              values.numel * static_cast<std::int64_t>(size_of(y.dtype)));
}
Launches clear_columns(const Columns& columns, const Tensor& y) {
  const std::int64_t numel = columns.rows * columns.count;
  return flat("clear_columns", numel, 0, numel * static_cast<std::int64_t>(size_of(y.dtype)));
}
Launches move_columns(const Columns& from, const ConstTensor&, const Columns&, const Tensor& y) {
  const std::int64_t numel = from.rows * from.count;
  const std::int64_t moved = numel * static_cast<std::int64_t>(size_of(y.dtype));
  return flat("move_columns", numel, moved, moved);
}

Launches nf4_encode(const ConstTensor& x, const Tensor& codes, const Tensor& scales) {
  return flat("nf4_encode", x.numel, x.bytes(), bytes_of(codes, scales));
}
Launches nf4_encode_scales(const ConstTensor& scales, const Tensor& codes, const Tensor& ranges) {
  return {memory("nf4_encode_scales (mean)", scales.bytes(), kFloat),
          memory("nf4_encode_scales", scales.bytes(), bytes_of(codes, ranges))};
}
Launches nf4_decode(const Nf4Part&, const Tensor& out) {
  return flat("nf4_decode", out.numel, (out.numel + 1) / 2 + nf4_blocks(out.numel), out.bytes());
}

Launches encode_blocks(BlockFormat, const ConstTensor& x, const Tensor& bytes) {
  return flat("encode_blocks", x.numel, x.bytes(), bytes.bytes());
}
Launches sum_blocks(BlockFormat format, const CodedParts& parts, const Tensor& out, bool onto_out) {
  return flat("sum_blocks", out.numel,
              parts.count * coded_bytes(format, out.numel) + (onto_out ? out.bytes() : 0),
              out.bytes());
}
Launches round_to_blocks(BlockFormat, const ConstTensor& x, const Tensor& out) {
  return flat("round_to_blocks", x.numel, x.bytes(), out.bytes());
}

}  // namespace sherd::kernels::launches
