/// CPU form of kernels/rotary.h; the equations are there.
#pragma once

#include "core/thread_team.h"
#include "kernels/rotary.h"

namespace sherd::kernels::cpu {

void rotary_table(ThreadTeam& team, Tensor table, std::int64_t positions,
                  const std::vector<double>& frequencies, double factor);
/// A table for `queries_only`: its cosines are the factors by which queries grow
/// (RotaryFrequencies::query_growth), its sines are zeros.
void query_growth_table(ThreadTeam& team, Tensor table, std::int64_t positions,
                        std::int64_t head_width, const RotaryFrequencies& growth);
void rotary(ThreadTeam& team, const Rotary& args);

}  // namespace sherd::kernels::cpu
