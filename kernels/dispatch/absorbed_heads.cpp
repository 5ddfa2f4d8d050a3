#include "kernels/absorbed_heads.h"

#include <algorithm>

#include "kernels/check_tensor.h"
#include "kernels/cpu/absorbed_heads.h"

namespace sherd::kernels {
namespace {

void check(const Stream& stream, const LatentHeads& shape) {
  SHERD_CHECK(!is_cuda(stream), "absorbed heads on a GPU");
  SHERD_CHECK(shape.plain % 2 == 0 && shape.rotated % 2 == 0 && shape.heads >= 1,
              "{} absorbed heads of {} + {}", shape.heads, shape.plain, shape.rotated);
}

void check_matrix(const LatentHeads& shape, const AbsorbedMatrix& matrix,
                  const AbsorbedScratch& scratch, DType dtype) {
  const std::int64_t T = shape.tokens, H = shape.heads, O = H * (shape.plain + shape.value);
  check_tensor("absorbed heads: up", matrix.up, dtype, O * matrix.latent);
  const auto has_room = [&](const char* label, const Tensor& tensor, std::int64_t numel) {
    SHERD_CHECK(tensor.dtype == dtype && tensor.numel >= numel,
                "absorbed heads: {} is {} [{}], {} [{}] needed", label, name_of(tensor.dtype),
                tensor.numel, name_of(dtype), numel);
  };
  has_room("plain", scratch.plain, H * T * std::max(shape.plain, shape.value));
  has_room("latents", scratch.latents, H * T * matrix.latent);
  if (matrix.rank == 0) return;
  check_tensor("absorbed heads: a", matrix.a, dtype, matrix.rank * matrix.latent);
  check_tensor("absorbed heads: b", matrix.b, dtype, O * matrix.rank);
  has_room("thin", scratch.thin, H * T * matrix.rank);
}

}  // namespace

void pack_one_key(Stream& stream, const LatentHeads& shape, ConstTensor query,
                  ConstTensor rotated_key, Tensor packed) {
  check(stream, shape);
  const std::int64_t T = shape.tokens, H = shape.heads, K = shape.head_width();
  check_tensor("one key: query", query, packed.dtype, T * H * K);
  check_tensor("one key: rotated_key", rotated_key, packed.dtype, T * shape.columns);
  check_tensor("one key: packed", packed, packed.dtype, T * (H + 2) * K);
  stream.run("pack_one_key",
             [=, &stream] { cpu::pack_one_key(stream.team(), shape, query, rotated_key, packed); });
}

void absorb_queries(Stream& stream, const AbsorbQueries& args) {
  check(stream, args.shape);
  const LatentHeads& shape = args.shape;
  const std::int64_t T = shape.tokens, H = shape.heads, C = args.matrix.latent;
  const DType dtype = args.qkv.dtype;
  check_matrix(shape, args.matrix, args.scratch, dtype);
  check_tensor("absorbed heads: packed", args.packed, dtype, T * (H + 2) * shape.head_width());
  check_tensor("absorbed heads: latents", args.latents, dtype, T * C);
  check_tensor("absorbed heads: qkv", args.qkv, dtype, T * (H + 2) * (C + shape.rotated));
  stream.run("absorb_queries", [args, &stream] { cpu::absorb_queries(stream.team(), args); });
}

void expand_attended(Stream& stream, const ExpandAttended& args) {
  check(stream, args.shape);
  const LatentHeads& shape = args.shape;
  const std::int64_t T = shape.tokens, H = shape.heads;
  const DType dtype = args.values.dtype;
  check_matrix(shape, args.matrix, args.scratch, dtype);
  check_tensor("absorbed heads: attended", args.attended, dtype,
               T * H * (args.matrix.latent + shape.rotated));
  check_tensor("absorbed heads: values", args.values, dtype, T * H * shape.value);
  stream.run("expand_attended", [args, &stream] { cpu::expand_attended(stream.team(), args); });
}

std::int64_t absorbed_workspace_bytes(const LatentHeads& shape, std::int64_t latent,
                                      std::int64_t rank, DType dtype) {
  return cpu::absorbed_workspace_bytes(shape, latent, rank, dtype);
}

}  // namespace sherd::kernels
