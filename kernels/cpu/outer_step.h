/// CPU form of kernels/outer_step.h; the equations and rules are there.
#pragma once

#include "core/thread_team.h"
#include "kernels/outer_step.h"

namespace sherd::kernels::cpu {

void outer_change(ThreadTeam& team, ConstTensor old, ConstTensor local, Tensor change);
void outer_step(ThreadTeam& team, const OuterStep& args);

}  // namespace sherd::kernels::cpu
