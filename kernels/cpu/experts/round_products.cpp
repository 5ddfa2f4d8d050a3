#include "kernels/cpu/experts/round_products.h"

#include "kernels/cpu/activation.h"
#include "kernels/cpu/columns.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

using Rows = ExpertRound::Rows;

// The sizes of one expert's matrix.
struct MatrixSize {
  std::int64_t inputs = 0, outputs = 0;
};
MatrixSize up_size(const ExpertsShape& shape) {
  return {shape.width, shape.up_width()};
}
MatrixSize down_size(const ExpertsShape& shape) {
  return {shape.ffn_width, shape.width};
}

void scale_rows(const ExpertRound& round, const Tensor& values, float scale) {
  if (scale == 1.0f) return;
  dispatch_float(values.dtype, [&]<class T>(T) {
    parallel_blocks(round.team(), values.numel, [&](std::int64_t first, int count) {
      alignas(64) float block[kBlock];
      T* own = values.as<T>() + first;
      widen(own, block, count);
#pragma omp simd
      for (int i = 0; i < count; ++i) block[i] *= scale;
      narrow(block, own, count);
    });
  });
}

// h = s A x, or with `transposed` d_h = s B^T dy, of each row.
Rows low_rank_rows(const ExpertRound& round, const ExpertAdapters& adapters,
                   const ConstTensor& matrix, std::int64_t inputs, bool transposed,
                   const Rows& rows) {
  const Tensor h = round.of(adapters.h, adapters.rank);
  round.multiply({.matrix = matrix,
                  .inputs = inputs,
                  .outputs = adapters.rank,
                  .transposed = transposed,
                  .out = h},
                 rows);
  scale_rows(round, h, adapters.scale);
  return {h, adapters.rank};
}

Rows columns_of(Rows rows, const ExpertAdapter& adapter) {
  rows.first_column += adapter.first_output;
  return rows;
}

Rows gradient_rows(const ExpertRound& round, const ExpertAdapters& adapters,
                   const ExpertAdapter& adapter, const Rows& dy) {
  return low_rank_rows(round, adapters, adapter.b, adapter.outputs, true, columns_of(dy, adapter));
}

// y += s B (A x)
void add_to_outputs(const ExpertRound& round, const ExpertAdapters& adapters,
                    const std::vector<ExpertAdapter>& list, MatrixSize size, const Rows& x,
                    const Tensor& y) {
  for (const ExpertAdapter& adapter : list) {
    const Rows h = low_rank_rows(round, adapters, adapter.a, size.inputs, false, x);
    const bool whole = adapter.outputs == size.outputs;
    const Tensor to = whole ? y : round.of(adapters.z, adapter.outputs);
    round.multiply({.matrix = adapter.b,
                    .inputs = adapters.rank,
                    .outputs = adapter.outputs,
                    .out = to,
                    .add = whole},
                   h);
    if (whole) continue;
    const Columns columns{round.range().count, size.outputs, adapter.first_output, adapter.outputs};
    add_to_columns(round.team(), columns, to, 1.0f, y);
  }
}

// dx += A^T d_h
void add_to_inputs(const ExpertRound& round, const ExpertAdapters& adapters,
                   const std::vector<ExpertAdapter>& list, MatrixSize size, const Rows& dy,
                   const Tensor& dx) {
  for (const ExpertAdapter& adapter : list) {
    round.multiply({.matrix = adapter.a,
                    .inputs = adapters.rank,
                    .outputs = size.inputs,
                    .transposed = true,
                    .out = dx,
                    .add = true},
                   gradient_rows(round, adapters, adapter, dy));
  }
}

}  // namespace

void form_activated(const ExpertRound& round, const RoundMatrices& matrices, const ConstTensor& x) {
  const ExpertsShape& shape = round.shape();
  const MatrixSize size = up_size(shape);
  const Tensor up = round.of(round.buffers().up, size.outputs);
  const Rows rows = round.inputs(x);
  round.multiply({.matrix = matrices.up,
                  .inputs = size.inputs,
                  .outputs = size.outputs,
                  .out = up,
                  .bias = matrices.biases.up},
                 rows);
  add_to_outputs(round, matrices.adapters, matrices.adapters.up, size, rows, up);
  activation_forward(
      round.team(), {round.activation(), up, round.of(round.buffers().activated, shape.ffn_width)});
}

void form_outputs(const ExpertRound& round, const RoundMatrices& matrices, const Tensor& out) {
  const MatrixSize size = down_size(round.shape());
  const Rows rows{round.of(round.buffers().activated, size.inputs), size.inputs};
  round.multiply({.matrix = matrices.down,
                  .inputs = size.inputs,
                  .outputs = size.outputs,
                  .out = out,
                  .bias = matrices.biases.down},
                 rows);
  add_to_outputs(round, matrices.adapters, matrices.adapters.down, size, rows, out);
}

void form_d_activated(const ExpertRound& round, const RoundMatrices& matrices,
                      const ConstTensor& dy) {
  const MatrixSize size = down_size(round.shape());
  const Tensor d_activated = round.of(round.buffers().d_activated, size.inputs);
  const Rows rows{dy, size.outputs, true};
  round.multiply({.matrix = matrices.down,
                  .inputs = size.outputs,
                  .outputs = size.inputs,
                  .transposed = true,
                  .out = d_activated},
                 rows);
  add_to_inputs(round, matrices.adapters, matrices.adapters.down, size, rows, d_activated);
}

void form_d_inputs(const ExpertRound& round, const RoundMatrices& matrices, const Tensor& d_x) {
  const MatrixSize size = up_size(round.shape());
  const Rows rows{round.of(round.buffers().up, size.outputs), size.outputs};
  round.multiply({.matrix = matrices.up,
                  .inputs = size.outputs,
                  .outputs = size.inputs,
                  .transposed = true,
                  .out = d_x},
                 rows);
  add_to_inputs(round, matrices.adapters, matrices.adapters.up, size, rows, d_x);
}

void add_adapter_gradients(const ExpertRound& round, const std::vector<ExpertPiece>& pieces,
                           const ExpertAdapters& adapters, const ConstTensor& x,
                           const ConstTensor& dy) {
  const auto add = [&](const std::vector<ExpertAdapter>& list, MatrixSize size, const Rows& read,
                       const Rows& d_outputs) {
    for (const ExpertAdapter& adapter : list) {
      const std::int64_t r = adapters.rank;
      const Rows h = low_rank_rows(round, adapters, adapter.a, size.inputs, false, read);
      round.add_gradient(pieces, {adapter.d_b, adapter.outputs, r}, columns_of(d_outputs, adapter),
                         h);
      const Rows d_h = gradient_rows(round, adapters, adapter, d_outputs);
      round.add_gradient(pieces, {adapter.d_a, r, size.inputs}, d_h, read);
    }
  };
  const ExpertsShape& shape = round.shape();
  const std::int64_t F = shape.ffn_width, U = shape.up_width();
  add(adapters.down, down_size(shape), {round.of(round.buffers().activated, F), F},
      {dy, shape.width, true});
  add(adapters.up, up_size(shape), round.inputs(x), {round.of(round.buffers().up, U), U});
}

void clear_adapter_gradients(const ExpertsShape& shape, const ExpertAdapters& adapters,
                             std::int64_t expert) {
  const auto clear = [&](const std::vector<ExpertAdapter>& list, MatrixSize size) {
    for (const ExpertAdapter& adapter : list) {
      clear_expert(adapter.d_a, expert, adapters.rank * size.inputs);
      clear_expert(adapter.d_b, expert, adapter.outputs * adapters.rank);
    }
  };
  clear(adapters.up, up_size(shape));
  clear(adapters.down, down_size(shape));
}

}  // namespace sherd::kernels::cpu
