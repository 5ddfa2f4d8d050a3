/// Latent attention that keeps no keys and values of heads, for text generation (DeepSeek-AI,
/// arXiv:2405.04434, section 2.1.2). kernels/latent_heads.h has the form that training computes.
/// The matrix W [H (N + V), C], which makes keys and values from latents c, is applied to queries
/// and to sums of latents instead:
///
///   <q_h, Wk_h c>            = <Wk_h^T q_h, c>
///   sum over t of p_t Wv_h c = Wv_h (sum over t of p_t c)
///
/// So all query heads attend to one head of keys and values, of width C + R:
///
///   query_h = [Wk_h^T q_h ; rotated]      key = [c ; rotated]      value = [c ; zeros]
///
/// An adapter adds s B A to W, with A [r, C] and B [H (N + V), r].
///
///   pack_one_key       query [T, H K], a rotated key -> packed [T, (H + 2) K], not rotated yet; the
///                      key's plain numbers and the value are zero. K and the parts are those of
///                      LatentHeads; only its rotated_key has `first` and `columns`.
///   absorb_queries     packed, rotated; latents [T, C]; W -> qkv [T, (H + 2) (C + R)]
///   expand_attended    attended [T, H (C + R)]; W -> values [T, H V]
///
/// Types     f32, bf16 or f16, all of one type. Products are rounded to it, and an adapter's are
///           added after that.
/// Bits      a token's results depend on its own row alone, not on T.
/// Scratch   plain [H T max(N, V)], latents [H T C], and with an adapter thin [H T r].
/// Workspace `absorbed_workspace_bytes`, for at most as many tokens.
/// Errors    other sizes are a bug in Sherd (SHERD_CHECK). CPU only.
#pragma once

#include "kernels/device.h"
#include "kernels/latent_heads.h"

namespace sherd::kernels {

struct AbsorbedMatrix {
  ConstTensor up{};         ///< W
  ConstTensor a{}, b{};     ///< of an adapter, or empty
  std::int64_t rank = 0;    ///< r; 0: there is no adapter
  float scale = 0.0f;       ///< s
  std::int64_t latent = 0;  ///< C
};

struct AbsorbedScratch {
  Tensor plain, latents, thin;
};

void pack_one_key(Stream& stream, const LatentHeads& shape, ConstTensor query,
                  ConstTensor rotated_key, Tensor packed);

struct AbsorbQueries {
  LatentHeads shape;
  AbsorbedMatrix matrix;
  ConstTensor packed, latents;
  Tensor qkv;
  AbsorbedScratch scratch;
  Tensor workspace;
};
void absorb_queries(Stream& stream, const AbsorbQueries& args);

struct ExpandAttended {
  LatentHeads shape;
  AbsorbedMatrix matrix;
  ConstTensor attended;
  Tensor values;
  AbsorbedScratch scratch;
  Tensor workspace;
};
void expand_attended(Stream& stream, const ExpandAttended& args);

/// `rank` 0: without an adapter.
std::int64_t absorbed_workspace_bytes(const LatentHeads& shape, std::int64_t latent,
                                      std::int64_t rank, DType dtype);

}  // namespace sherd::kernels
