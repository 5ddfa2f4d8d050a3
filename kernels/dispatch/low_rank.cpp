#include "kernels/low_rank.h"

#include "kernels/check_tensor.h"
#include "kernels/cpu/low_rank.h"
#include "kernels/device.h"

namespace sherd::kernels {
namespace {

void check_factors(const LowRankShape& shape, ConstTensor p, ConstTensor q) {
  check_tensor("p", p, DType::kF32, shape.rank * shape.rows);
  check_tensor("q", q, DType::kF32, shape.rank * shape.columns);
}

}  // namespace

void low_rank_rows(Stream& stream, const LowRankShape& shape, ConstTensor matrix, ConstTensor q,
                   Tensor p) {
  SHERD_CHECK(!is_cuda(stream), "low-rank products on a GPU");
  check_tensor("matrix", matrix, DType::kF32, shape.rows * shape.columns);
  check_factors(shape, p, q);
  stream.run("low_rank_rows", [=, &stream] {
    cpu::low_rank_rows(stream.team(), shape, matrix.as<float>(), q.as<float>(), p.as<float>());
  });
}

void low_rank_columns(Stream& stream, const LowRankShape& shape, ConstTensor matrix, ConstTensor p,
                      Tensor q) {
  SHERD_CHECK(!is_cuda(stream), "low-rank products on a GPU");
  check_tensor("matrix", matrix, DType::kF32, shape.rows * shape.columns);
  check_factors(shape, p, q);
  stream.run("low_rank_columns", [=, &stream] {
    cpu::low_rank_columns(stream.team(), shape, matrix.as<float>(), p.as<float>(), q.as<float>());
  });
}

void orthonormalise(Stream& stream, std::int64_t count, std::int64_t length, Tensor x,
                    std::optional<RandomAddress> redraw) {
  SHERD_CHECK(!is_cuda(stream), "low-rank products on a GPU");
  check_tensor("x", x, DType::kF32, count * length);
  stream.run("orthonormalise", [=] { cpu::orthonormalise(count, length, x.as<float>(), redraw); });
}

void next_basis(Stream& stream, std::int64_t count, std::int64_t length, float scale, Tensor r,
                Tensor q) {
  SHERD_CHECK(!is_cuda(stream), "low-rank products on a GPU");
  check_tensor("r", r, DType::kF32, count * length);
  check_tensor("q", q, DType::kF32, count * length);
  stream.run("next_basis", [=, &stream] {
    cpu::next_basis(stream.team(), count, length, scale, r.as<float>(), q.as<float>());
  });
}

void low_rank_restore(Stream& stream, const LowRankShape& shape, const LowRankParts& parts,
                      std::int64_t first, Tensor elements, Tensor error) {
  SHERD_CHECK(!is_cuda(stream), "low-rank products on a GPU");
  check_factors(shape, parts.p, parts.own_q);
  check_factors(shape, parts.p, parts.sum_q);
  check_tensor("error", error, DType::kF32, elements.numel);
  SHERD_CHECK(
      first >= 0 && elements.numel > 0 && first + elements.numel <= shape.rows * shape.columns,
      "elements [{}, +{}) of a matrix of {} x {}", first, elements.numel, shape.rows,
      shape.columns);
  stream.run("low_rank_restore", [=, &stream] {
    cpu::low_rank_restore(stream.team(), shape, parts, first, elements, error);
  });
}

}  // namespace sherd::kernels
