/// Matmuls whose depth is summed in groups, as a balanced tree: for models whose sums are the same
/// however many tensor ranks share them (docs/precision.md, "canonical").
///
///   forward          sum[t,o] = tree over j of s_j,  s_j = sum over i in group j of x[t,i] w[o,i]
///   backward_input   sum[t,i] = tree over j of s_j,  s_j = sum over o in group j of dy[t,o] w[o,i]
///   backward_weight  dw[o,i]  = tree over j of s_j,  s_j = sum over t in group j of dy[t,o] x[t,i]
///                    dbias[o] likewise of dy[t,o]
///   tree of g groups:  (tree of the first g / 2) + (tree of the others)
///   finish           y = sum + bias,  or  y = y + sum
///
/// A rank that holds the first half of the depth, in half as many groups, has the tree's left part;
/// the rank with the second half has its right part. Their sum is what one rank with all groups
/// computes.
///
/// Shapes    as kernels/linear.h; sum [T, O] or [T, I], dw and dbias f32
/// Types     x, w, dy of one type (f32, bf16, f16). Each group is a separate matmul with an f32
///           result (kernels/cpu/matmul/matmul.h has its order of sums). Its further ranges are
///           added one after another. A group without elements is 0. `finish` rounds once.
/// Bits      as kernels/linear.h. dbias: up to 64 neighbouring tokens of a group in a sequence are
///           added in order, then these sums.
/// Workspace `grouped_linear_workspace_bytes`; fewer rows never need more. A thread computes some
/// rows of a result with all their groups in its part, so the tree needs no buffer of the result's
/// size and threads don't synchronise.
/// Device    CPU.
#pragma once

#include <vector>

#include "kernels/linear.h"
#include "kernels/token_groups.h"

namespace sherd::kernels {

/// One of the matrices that are placed side by side along the depth.
struct DepthRange {
  std::int64_t first = 0, count = 0;
  std::int64_t of_a_group = 0;  ///< elements; the last groups may have fewer, or none
};

/// Group j has the elements [j of_a_group, (j + 1) of_a_group) of every range, as far as they
/// exist.
struct GroupedDepth {
  int groups = 1;  ///< 2^n
  std::vector<DepthRange> ranges;
};

struct GroupedForward {
  LinearShape shape;
  GroupedDepth depth;  ///< of I
  ConstTensor x, w;
  Tensor sum, workspace;
};
void grouped_forward(Stream& stream, const GroupedForward& args);

struct GroupedBackwardInput {
  LinearShape shape;
  GroupedDepth depth;  ///< of O
  ConstTensor dy, w;
  Tensor sum, workspace;
};
void grouped_backward_input(Stream& stream, const GroupedBackwardInput& args);

struct GroupedBackwardWeight {
  LinearShape shape;
  TokenGroups tokens;  ///< of T: the depth
  ConstTensor dy, x;
  Tensor dw, dbias;  ///< dbias may be empty
  Tensor workspace;
  std::int64_t x_positions = 0;  ///< per sequence in x, if dy has only some of them; else 0
};
void grouped_backward_weight(Stream& stream, const GroupedBackwardWeight& args);

struct GroupedFinish {
  std::int64_t tokens = 0, width = 0;
  ConstTensor sum, bias;  ///< bias may be empty
  Tensor y;
  bool add = false;  ///< add to y; not with a bias
};
void grouped_finish(Stream& stream, const GroupedFinish& args);

/// Enough for results of at most `rows` x `width`, over a depth of at most `depth`, in at most
/// `groups` groups.
std::int64_t grouped_linear_workspace_bytes(std::int64_t rows, std::int64_t width,
                                            std::int64_t depth, int groups,
                                            const ComputeDevice& device);

}  // namespace sherd::kernels
