/// CPU form of kernels/nf4.h; the equations and rules are there.
#pragma once

#include "core/thread_team.h"
#include "kernels/nf4.h"

namespace sherd::kernels::cpu {

void nf4_encode(ThreadTeam& team, ConstTensor x, Tensor codes, Tensor scales);
void nf4_encode_scales(ConstTensor scales, Tensor codes, Tensor ranges);
void nf4_decode(ThreadTeam& team, const Nf4Part& part, Tensor out);

}  // namespace sherd::kernels::cpu
