/// CPU form of kernels/update.h; the equations are there.
#pragma once

#include "core/thread_team.h"
#include "kernels/update.h"

namespace sherd::kernels::cpu {

void adamw_update(ThreadTeam& team, const AdamWUpdate& args);
void sgd_update(ThreadTeam& team, const SgdUpdate& args);

}  // namespace sherd::kernels::cpu
