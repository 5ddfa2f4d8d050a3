/// CPU form of kernels/latent_heads.h; the shapes and rules are there.
#pragma once

#include "core/thread_team.h"
#include "kernels/latent_heads.h"

namespace sherd::kernels::cpu {

void join_latent_heads(ThreadTeam& team, const LatentHeads& shape, ConstTensor query,
                       ConstTensor keys_values, ConstTensor rotated_key, Tensor qkv);
void split_latent_heads(ThreadTeam& team, const LatentHeads& shape, ConstTensor d_qkv,
                        Tensor d_query, Tensor d_keys_values, Tensor d_rotated_key);
void take_values(ThreadTeam& team, const LatentHeads& shape, ConstTensor padded, Tensor values);
void spread_values(ThreadTeam& team, const LatentHeads& shape, ConstTensor values, Tensor padded);

}  // namespace sherd::kernels::cpu
