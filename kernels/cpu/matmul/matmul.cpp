#include "kernels/cpu/matmul/matmul.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/cpu/interleaved.h"
#include "kernels/cpu/matmul/one_row.h"
#include "kernels/cpu/matmul/run.h"
#include "kernels/cpu/round_up.h"
#include "kernels/interleaved.h"

namespace sherd::kernels::cpu {
namespace {

// Two blocks, if there is more than one and a thread that packs ahead.
bool has_two_blocks(std::int64_t columns, std::int64_t depth, bool one_thread) {
  return !one_thread && (columns > kMaxColumns || depth > kMaxDepth);
}

void check_operands(const Matmul& p) {
  SHERD_CHECK(p.b.interleaved == 0 || (p.b.transposed && can_interleave(p.dtype, p.b.stride) &&
                                       p.b.interleaved == interleaved_rows(p.columns)),
              "matmul: {} of {} columns side by side", p.b.interleaved, p.columns);
}

// What packing b costs, in rows of a to multiply with: an estimate, by which threads share a list.
constexpr std::int64_t kRowsOfPacking = 16;
std::int64_t work_of(const Matmul& p) {
  return (p.rows + kRowsOfPacking) * p.columns * p.depth;
}

// Whether threads that take one matmul after another, the largest first, end at about the same
// time, and it is worth it.
bool pays(const std::vector<Matmul>& largest_first, int threads) {
  std::vector<std::int64_t> work(static_cast<std::size_t>(threads));
  std::int64_t all = 0;
  for (const Matmul& p : largest_first) {
    *std::ranges::min_element(work) += work_of(p);
    all += work_of(p);
  }
  return all >= kLeastForThreads && std::ranges::max(work) * threads <= all + all / 16;
}

// Each matmul by one thread, which packs what it multiplies: no core reads what another has packed.
// False, and nothing is done: the work would be uneven, or is little.
bool run_one_by_each(ThreadTeam& team, std::span<const Matmul> list, std::int64_t floats_of_thread,
                     const Tensor& workspace) {
  std::vector<Matmul> largest_first(list.begin(), list.end());
  std::ranges::stable_sort(largest_first, std::ranges::greater{}, work_of);
  if (!pays(largest_first, team.num_threads())) return false;
  const std::int64_t bytes = 4 * floats_of_thread;
  team.parallel_for(std::ssize(largest_first), [&](std::int64_t i, int thread) {
    ThreadTeam alone(1);
    const Tensor own{static_cast<char*>(workspace.data) + thread * bytes, DType::kU8, bytes};
    run_matmuls(alone, {&largest_first[static_cast<std::size_t>(i)], 1}, false, own);
  });
  return true;
}

}  // namespace

void matmul(ThreadTeam& team, const Matmul& p, const Tensor& workspace) {
  const bool one_thread = team.num_threads() == 1;
  const std::int64_t needed =
      matmul_workspace_bytes(p.rows, p.columns, p.depth, p.c.dtype, one_thread);
  SHERD_CHECK(workspace.bytes() >= needed, "matmul: a workspace of {} bytes, {} needed",
              workspace.bytes(), needed);
  check_operands(p);
  if (is_one_row(p)) return multiply_one_row(team, p);
  run_matmuls(team, {&p, 1}, has_two_blocks(p.columns, p.depth, one_thread), workspace);
}

std::int64_t matmul_workspace_bytes(std::int64_t rows, std::int64_t columns, std::int64_t depth,
                                    DType c_dtype, bool one_thread) {
  const std::int64_t blocks = has_two_blocks(columns, depth, one_thread) ? 2 : 1;
  return 4 * (blocks * floats_of_block(columns, depth) + sum_floats(rows, depth, c_dtype));
}

void matmul_list(ThreadTeam& team, std::span<const Matmul> list, const Tensor& workspace) {
  if (std::ranges::all_of(list, [](const Matmul& p) { return p.rows <= kFewRows; })) {
    for (const Matmul& p : list) matmul(team, p, workspace);
    return;
  }
  std::int64_t block = 0, sums = 0;
  for (const Matmul& p : list) {
    SHERD_CHECK(p.dtype == list[0].dtype && p.c.dtype == list[0].c.dtype,
                "matmuls of different types in one list");
    check_operands(p);
    block = std::max(block, floats_of_block(p.columns, p.depth));
    sums = std::max(sums, sum_floats(p.rows, p.depth, p.c.dtype));
  }
  const bool two_blocks = team.num_threads() > 1;
  const std::int64_t needed = 4 * ((two_blocks ? 2 : 1) * block + sums);
  SHERD_CHECK(workspace.bytes() >= needed, "matmuls: a workspace of {} bytes, {} needed",
              workspace.bytes(), needed);
  const bool has_room = sums == 0 && team.num_threads() * block * 4 <= workspace.bytes();
  if (two_blocks && has_room && run_one_by_each(team, list, block, workspace)) return;
  run_matmuls(team, list, two_blocks, workspace);
}

std::int64_t matmul_list_workspace_bytes(std::int64_t rows, std::int64_t columns,
                                         std::int64_t depth, DType c_dtype) {
  return 4 * (2 * floats_of_block(columns, depth) + sum_floats(rows, depth, c_dtype));
}

std::int64_t matmul_depth_piece(std::int64_t depth) {
  std::int64_t pieces = 1;
  while (ceil_div(depth, pieces) > kMaxDepth) pieces *= 2;
  return std::min(depth, round_up(ceil_div(depth, pieces), 8));
}

}  // namespace sherd::kernels::cpu
