/// The CPU form of kernels/router.h.
#pragma once

#include "core/thread_team.h"
#include "kernels/router.h"

namespace sherd::kernels::cpu {

void router_forward(ThreadTeam& team, const RouterForward& args);
void router_losses(ThreadTeam& team, const RouterLosses& args);
void router_totals(const RouterTotals& args);
void router_correction(const RouterCorrection& args);
void router_backward(ThreadTeam& team, const RouterBackward& args);

}  // namespace sherd::kernels::cpu
