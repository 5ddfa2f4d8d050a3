#include "kernels/cpu/absorbed_heads.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/latent_halves.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

struct Sizes {
  Sizes(const LatentHeads& shape, const AbsorbedMatrix& matrix)
      : T(shape.tokens),
        H(shape.heads),
        N(shape.plain),
        R(shape.rotated),
        V(shape.value),
        C(matrix.latent),
        rank(matrix.rank) {}
  std::int64_t head() const { return N + R; }                           // of packed
  std::int64_t wide_head() const { return C + R; }                      // of what attention reads
  std::int64_t first_row(std::int64_t h) const { return h * (N + V); }  // of a head in W and B
  std::int64_t T, H, N, R, V, C, rank;
};

const void* from(const ConstTensor& tensor, std::int64_t element) {
  return static_cast<const char*>(tensor.data) +
         element * static_cast<std::int64_t>(size_of(tensor.dtype));
}

// A product for each head: `of(h)`.
template <class Of>
void for_heads(ThreadTeam& team, const Sizes& n, const Tensor& workspace, const Of& of) {
  std::vector<Matmul> list;
  list.reserve(static_cast<std::size_t>(n.H));
  for (std::int64_t h = 0; h < n.H; ++h) list.push_back(of(h));
  matmul_list(team, list, workspace);
}

void multiply(ThreadTeam& team, float factor, std::int64_t rows, std::int64_t width,
              const Tensor& values) {
  dispatch_float(values.dtype, [&]<class T>(T) {
    parallel_rows(team, rows, width, [&](std::int64_t row) {
      T* at = values.as<T>() + row * width;
      for (std::int64_t i = 0; i < width; ++i) {
        at[i] = static_cast<T>(factor * static_cast<float>(at[i]));
      }
    });
  });
}

void take_plain(ThreadTeam& team, const AbsorbQueries& args, const Sizes& n) {
  const LatentHalves halves(args.shape);
  const std::int64_t width = (n.H + 2) * n.head();
  dispatch_float(args.packed.dtype, [&]<class T>(T) {
    parallel_rows(team, n.T, width, [&](std::int64_t t) {
      for (std::int64_t h = 0; h < n.H; ++h) {
        halves.take_plain(args.packed.as<T>() + t * width + h * n.head(),
                          args.scratch.plain.as<T>() + (h * n.T + t) * n.N);
      }
    });
  });
}

void join(ThreadTeam& team, const AbsorbQueries& args, const Sizes& n) {
  const LatentHalves halves(args.shape);
  const std::int64_t from_width = (n.H + 2) * n.head(), to_width = (n.H + 2) * n.wide_head();
  dispatch_float(args.qkv.dtype, [&]<class T>(T) {
    parallel_rows(team, n.T, to_width, [&](std::int64_t t) {
      const T* packed = args.packed.as<T>() + t * from_width;
      T* out = args.qkv.as<T>() + t * to_width;
      for (std::int64_t h = 0; h <= n.H; ++h, packed += n.head(), out += n.wide_head()) {
        const T* latent = h < n.H ? args.scratch.latents.as<T>() + (h * n.T + t) * n.C
                                  : args.latents.as<T>() + t * n.C;
        halves.take_rotated(packed, std::copy_n(latent, n.C, out));
      }
      std::fill_n(std::copy_n(args.latents.as<T>() + t * n.C, n.C, out), n.R, T{});
    });
  });
}

}  // namespace

void pack_one_key(ThreadTeam& team, const LatentHeads& shape, ConstTensor query,
                  ConstTensor rotated_key, Tensor packed) {
  const LatentHalves halves(shape);
  const std::int64_t H = shape.heads, K = shape.head_width(), width = (H + 2) * K;
  dispatch_float(packed.dtype, [&]<class T>(T) {
    const std::vector<T> zeros(static_cast<std::size_t>(shape.plain), T{});
    parallel_rows(team, shape.tokens, width, [&](std::int64_t t) {
      const T* in = query.as<T>() + t * H * K;
      T* out = packed.as<T>() + t * width;
      for (std::int64_t h = 0; h < H; ++h, in += K, out += K) {
        halves.join(in, in + shape.plain, out);
      }
      halves.join(zeros.data(), rotated_key.as<T>() + t * shape.columns + shape.first, out);
      std::fill_n(out + K, K, T{});
    });
  });
}

void absorb_queries(ThreadTeam& team, const AbsorbQueries& args) {
  const Sizes n(args.shape, args.matrix);
  const DType dtype = args.qkv.dtype;
  const auto& [plain, latents, thin] = args.scratch;
  const auto of_head = [&](std::int64_t h) {
    return MatmulOperand{from(plain, h * n.T * n.N), n.N};
  };
  take_plain(team, args, n);
  for_heads(team, n, args.workspace, [&](std::int64_t h) {
    return Matmul{.rows = n.T,
                  .columns = n.C,
                  .depth = n.N,
                  .dtype = dtype,
                  .a = of_head(h),
                  .b = {from(args.matrix.up, n.first_row(h) * n.C), n.C},
                  .c = latents.part(h * n.T * n.C, n.T * n.C)};
  });
  if (n.rank > 0) {
    const std::int64_t rows = n.H * n.T;
    for_heads(team, n, args.workspace, [&](std::int64_t h) {
      return Matmul{.rows = n.T,
                    .columns = n.rank,
                    .depth = n.N,
                    .dtype = dtype,
                    .a = of_head(h),
                    .b = {from(args.matrix.b, n.first_row(h) * n.rank), n.rank},
                    .c = thin.part(h * n.T * n.rank, n.T * n.rank)};
    });
    multiply(team, args.matrix.scale, rows, n.rank, thin);
    matmul(team,
           {.rows = rows,
            .columns = n.C,
            .depth = n.rank,
            .dtype = dtype,
            .a = {thin.data, n.rank},
            .b = {args.matrix.a.data, n.C},
            .c = latents.part(0, rows * n.C),
            .add = true},
           args.workspace);
  }
  join(team, args, n);
}

void expand_attended(ThreadTeam& team, const ExpandAttended& args) {
  const Sizes n(args.shape, args.matrix);
  const DType dtype = args.values.dtype;
  const auto& [plain, latents, thin] = args.scratch;
  const auto values_of = [&](std::int64_t h) { return plain.part(h * n.T * n.V, n.T * n.V); };
  for_heads(team, n, args.workspace, [&](std::int64_t h) {
    return Matmul{.rows = n.T,
                  .columns = n.V,
                  .depth = n.C,
                  .dtype = dtype,
                  .a = {from(args.attended, h * n.wide_head()), n.H * n.wide_head()},
                  .b = {from(args.matrix.up, (n.first_row(h) + n.N) * n.C), n.C, true},
                  .c = values_of(h)};
  });
  if (n.rank > 0) {
    const std::int64_t rows = n.T * n.H;
    matmul(team,
           {.rows = rows,
            .columns = n.rank,
            .depth = n.C,
            .dtype = dtype,
            .a = {args.attended.data, n.wide_head()},
            .b = {args.matrix.a.data, n.C, true},
            .c = thin.part(0, rows * n.rank)},
           args.workspace);
    multiply(team, args.matrix.scale, rows, n.rank, thin);
    for_heads(team, n, args.workspace, [&](std::int64_t h) {
      return Matmul{.rows = n.T,
                    .columns = n.V,
                    .depth = n.rank,
                    .dtype = dtype,
                    .a = {from(thin, h * n.rank), n.H * n.rank},
                    .b = {from(args.matrix.b, (n.first_row(h) + n.N) * n.rank), n.rank, true},
                    .c = values_of(h),
                    .add = true};
    });
  }
  dispatch_float(dtype, [&]<class T>(T) {
    parallel_rows(team, n.T * n.H, n.V, [&](std::int64_t row) {
      const std::int64_t t = row / n.H, h = row % n.H;
      std::copy_n(plain.as<T>() + (h * n.T + t) * n.V, n.V, args.values.as<T>() + row * n.V);
    });
  });
}

std::int64_t absorbed_workspace_bytes(const LatentHeads& shape, std::int64_t latent,
                                      std::int64_t rank, DType dtype) {
  AbsorbedMatrix matrix;
  matrix.latent = latent;
  const Sizes n(shape, matrix);
  const auto of_heads = [&](std::int64_t columns, std::int64_t depth) {
    return matmul_list_workspace_bytes(n.T, columns, depth, dtype);
  };
  std::int64_t bytes = std::max(of_heads(n.C, n.N), of_heads(n.V, n.C));
  if (rank == 0) return bytes;
  bytes = std::max({bytes, of_heads(rank, n.N), of_heads(n.V, rank)});
  return std::max({bytes, matmul_workspace_bytes(n.T * n.H, n.C, rank, dtype),
                   matmul_workspace_bytes(n.T * n.H, rank, n.C, dtype)});
}

}  // namespace sherd::kernels::cpu
