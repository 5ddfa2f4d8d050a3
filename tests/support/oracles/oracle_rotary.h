/// kernels/rotary.h in double precision.
#pragma once

#include "kernels/rotary.h"
#include "tests/support/oracles/oracle_values.h"

namespace sherd::oracle {

/// [positions, head_width]: cos of the angles, then their sin.
Values rotary_table(std::int64_t positions, std::int64_t head_width, double theta);
/// `args.table` and `args.qkv` aren't read.
Values rotary(const kernels::Rotary& args, const Values& table, Values qkv);

}  // namespace sherd::oracle
