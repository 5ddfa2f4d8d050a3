/// CPU form of kernels/adapter.h; the equations and rules are there.
#pragma once

#include "core/thread_team.h"
#include "kernels/adapter.h"

namespace sherd::kernels::cpu {

void add_to_columns(ThreadTeam& team, const Columns& columns, ConstTensor z, float scale, Tensor y);
void take_columns(ThreadTeam& team, const Columns& columns, ConstTensor y, float scale, Tensor z);
void fill_uniform(ThreadTeam& team, Tensor out, const RandomAddress& address,
                  std::int64_t first_element, float bound);

}  // namespace sherd::kernels::cpu
