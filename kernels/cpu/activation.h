/// CPU form of kernels/activation.h; the equations are there.
#pragma once

#include "core/thread_team.h"
#include "kernels/activation.h"

namespace sherd::kernels::cpu {

void activation_forward(ThreadTeam& team, const ActivationForward& args);
void activation_backward(ThreadTeam& team, const ActivationBackward& args);

}  // namespace sherd::kernels::cpu
