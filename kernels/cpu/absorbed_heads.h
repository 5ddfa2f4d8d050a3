/// CPU form of kernels/absorbed_heads.h; the shapes and rules are there.
#pragma once

#include "core/thread_team.h"
#include "kernels/absorbed_heads.h"

namespace sherd::kernels::cpu {

void pack_one_key(ThreadTeam& team, const LatentHeads& shape, ConstTensor query,
                  ConstTensor rotated_key, Tensor packed);
void absorb_queries(ThreadTeam& team, const AbsorbQueries& args);
void expand_attended(ThreadTeam& team, const ExpandAttended& args);
std::int64_t absorbed_workspace_bytes(const LatentHeads& shape, std::int64_t latent,
                                      std::int64_t rank, DType dtype);

}  // namespace sherd::kernels::cpu
