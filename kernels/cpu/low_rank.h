/// CPU form of kernels/low_rank.h; the equations and rules are there.
#pragma once

#include "core/thread_team.h"
#include "kernels/low_rank.h"

namespace sherd::kernels::cpu {

void low_rank_rows(ThreadTeam& team, const LowRankShape& shape, const float* matrix, const float* q,
                   float* p);
void low_rank_columns(ThreadTeam& team, const LowRankShape& shape, const float* matrix,
                      const float* p, float* q);
void orthonormalise(std::int64_t count, std::int64_t length, float* x,
                    const std::optional<RandomAddress>& redraw);
void next_basis(ThreadTeam& team, std::int64_t count, std::int64_t length, float scale, float* r,
                float* q);
void low_rank_restore(ThreadTeam& team, const LowRankShape& shape, const LowRankParts& parts,
                      std::int64_t first, Tensor elements, Tensor error);

}  // namespace sherd::kernels::cpu
