/// The CPU form of kernels/expert_rows.h.
#pragma once

#include "core/thread_team.h"
#include "kernels/expert_rows.h"

namespace sherd::kernels::cpu {

void expert_order(ThreadTeam& team, const ExpertOrder& args);
void expert_pack(ThreadTeam& team, const ExpertPack& args);
void expert_choices_to_rows(ThreadTeam& team, const ExpertChoices& args);
void expert_rows_to_choices(ThreadTeam& team, const ExpertChoices& args);
void expert_input_weights(ThreadTeam& team, const ExpertInputWeights& args);
void expert_combine(ThreadTeam& team, const ExpertCombine& args);
void expert_rows_forward(ThreadTeam& team, const ExpertRowsForward& args);
void expert_rows_activate(ThreadTeam& team, const ExpertRowsActivate& args);
void expert_rows_backward(ThreadTeam& team, const ExpertRowsBackward& args);
void expert_rows_gradients(ThreadTeam& team, const ExpertRowsGradients& args);

}  // namespace sherd::kernels::cpu
