/// CPU form of kernels/update.h; the equations are there.
#pragma once

#include "core/thread_team.h"
#include "kernels/update.h"

namespace sherd::kernels::cpu {

void adam_update(ThreadTeam& team, const AdamUpdate& args);
void sgd_update(ThreadTeam& team, const SgdUpdate& args);
void lion_update(ThreadTeam& team, const LionUpdate& args);
void lamb_moments(ThreadTeam& team, const LambUpdate& args);
void lamb_norms(ThreadTeam& team, const LambUpdate& args, Tensor sums);
void lamb_apply(ThreadTeam& team, const LambUpdate& args, std::span<const float> ratios);
void lars_norms(ThreadTeam& team, const LarsUpdate& args, Tensor sums);
void lars_apply(ThreadTeam& team, const LarsUpdate& args, std::span<const float> ratios);
void muon_momentum(ThreadTeam& team, const MuonUpdate& args);
void dion_momentum(ThreadTeam& team, const MuonUpdate& args);
void muon_apply(ThreadTeam& team, const MuonUpdate& args, std::span<const float> ratios);

}  // namespace sherd::kernels::cpu
