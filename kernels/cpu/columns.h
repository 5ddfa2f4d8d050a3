/// CPU form of kernels/columns.h; the equations and rules are there.
#pragma once

#include "core/thread_team.h"
#include "kernels/columns.h"

namespace sherd::kernels::cpu {

void add_to_columns(ThreadTeam& team, const Columns& columns, ConstTensor z, float scale, Tensor y);
void take_columns(ThreadTeam& team, const Columns& columns, ConstTensor y, float scale, Tensor z);
void store_columns(ThreadTeam& team, const Columns& columns, ConstTensor values, Tensor y);
void clear_columns(ThreadTeam& team, const Columns& columns, Tensor y);

void move_columns(ThreadTeam& team, const Columns& from, ConstTensor x, const Columns& to,
                  Tensor y);

}  // namespace sherd::kernels::cpu
