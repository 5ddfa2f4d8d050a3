/// The CPU form of kernels/grouped_linear.h.
#pragma once

#include "core/thread_team.h"
#include "kernels/grouped_linear.h"

namespace sherd::kernels::cpu {

void grouped_forward(ThreadTeam& team, const GroupedForward& args);
void grouped_backward_input(ThreadTeam& team, const GroupedBackwardInput& args);
void grouped_backward_weight(ThreadTeam& team, const GroupedBackwardWeight& args);
void add_bias(ThreadTeam& team, const GroupedFinish& args);
/// Per thread.
std::int64_t grouped_linear_workspace_bytes(std::int64_t rows, std::int64_t width,
                                            std::int64_t depth, int groups);

}  // namespace sherd::kernels::cpu
