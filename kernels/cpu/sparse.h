/// CPU form of kernels/sparse.h; the equations and rules are there.
#pragma once

#include "core/thread_team.h"
#include "kernels/sparse.h"

namespace sherd::kernels::cpu {

void squares_of_blocks(ThreadTeam& team, ConstTensor x, Tensor sums);
void accumulate_sparsely(ThreadTeam& team, const SparseAccumulation& args);
void choose_largest(const SparseRules& rules, const float* chunk, std::int64_t numel,
                    std::int64_t first, SparseEntry* entries);
void add_entries(const SparseEntry* entries, std::int64_t count, std::int64_t first, Tensor out);
void zero_entries(const SparseEntry* entries, std::int64_t count, std::int64_t first, Tensor x);

}  // namespace sherd::kernels::cpu
