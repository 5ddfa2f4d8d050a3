/// CPU form of kernels/block_codec.h; the equations and rules are there.
#pragma once

#include "core/thread_team.h"
#include "kernels/block_codec.h"

namespace sherd::kernels::cpu {

void encode_blocks(ThreadTeam& team, BlockFormat format, ConstTensor x, Tensor bytes);
void sum_blocks(ThreadTeam& team, BlockFormat format, const CodedParts& parts, Tensor out,
                bool onto_out);
void round_to_blocks(ThreadTeam& team, BlockFormat format, ConstTensor x, Tensor out);

}  // namespace sherd::kernels::cpu
