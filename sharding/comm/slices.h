/// What every communicator checks of the tensors that it gets: slices are equal, and shapes that
/// disagree on one rank are our bug (SHERD_CHECK).
#pragma once

#include <bit>
#include <vector>

#include "kernels/pointwise.h"
#include "sharding/comm/communicator.h"
#include "sharding/comm/meeting_place.h"

namespace sherd::sharding {

inline void check_divides(const Communicator& communicator, const Tensor& full,
                          const std::string& label) {
  SHERD_CHECK(full.numel % communicator.world_size() == 0, "{}: {} elements on {} ranks", label,
              full.numel, communicator.world_size());
}

inline void check_reduce_scatter(const Communicator& communicator, const Tensor& full,
                                 const Tensor& out, const std::string& label) {
  check_divides(communicator, full, label);
  SHERD_CHECK(out.numel * communicator.world_size() == full.numel,
              "reduce_scatter of {}: {} elements into {}", label, full.numel, out.numel);
}

inline void check_all_to_all(const Communicator& communicator, const Tensor& full,
                             const Tensor& out, const std::string& label) {
  check_divides(communicator, full, label);
  SHERD_CHECK(out.numel == full.numel && out.dtype == full.dtype && out.data != full.data,
              "all_to_all of {}: {} elements into {}", label, full.numel, out.numel);
}

inline void check_all_to_all_v(const Communicator& communicator,
                               const std::vector<ElementRange>& sends,
                               const std::vector<ElementRange>& receives, const Tensor& from,
                               const Tensor& to, const std::string& label) {
  const auto ranks = static_cast<std::size_t>(communicator.world_size());
  const auto own = static_cast<std::size_t>(communicator.rank());
  SHERD_CHECK(sends.size() == ranks && receives.size() == ranks && from.dtype == to.dtype &&
                  sends[own].count == receives[own].count,
              "all_to_all_v of {}: {} ranges to send and {} to receive, of {} ranks", label,
              sends.size(), receives.size(), ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    (void)from.part(sends[r].first, sends[r].count);
    (void)to.part(receives[r].first, receives[r].count);
  }
}

/// "block.7, in trees of 4".
inline std::string sum_label(const Communicator& communicator, const std::string& label, int tree) {
  if (tree == 1) return label;
  SHERD_CHECK(tree > 1 && std::has_single_bit(static_cast<unsigned>(tree)) &&
                  communicator.world_size() % tree == 0,
              "{}: {} ranks in balanced trees of {}", label, communicator.world_size(), tree);
  return fmt::format("{}, in trees of {}", label, tree);
}

/// What ranks must agree on, in messages: "block.7, added to the accumulated sum, of ranks 2 to 3".
inline std::string reduction_label(const Communicator& communicator, const std::string& label,
                                   const Addends& addends) {
  std::string text = sum_label(communicator, label, addends.tree);
  if (addends.onto_out) text += ", added to the accumulated sum";
  if (addends.num_ranks > 0) {
    text += fmt::format(", of ranks {} to {}", addends.first_rank,
                        addends.first_rank + addends.num_ranks - 1);
  }
  return text;
}

/// For communicators whose sums have one fixed order.
inline void check_no_tree(const std::string& label, int tree) {
  SHERD_CHECK(tree == 1, "{}: sums as trees are the CPU's", label);
}

inline void check_root(const Communicator& communicator, int root) {
  SHERD_CHECK(root >= 0 && root < communicator.world_size(), "broadcast from rank {}", root);
}

/// Adds what ranks have brought, on the calling thread. All ranks of a tree are among the addends.
inline void add_up_on_host(const std::vector<ConstTensor>& inputs, const Tensor& out,
                           const Addends& addends) {
  const auto num_inputs = static_cast<int>(inputs.size());
  if (addends.tree == 1) {
    return kernels::sum_in_order_on_host(inputs.data(), num_inputs, out, addends.onto_out);
  }
  SHERD_CHECK(addends.first_rank % addends.tree == 0, "a tree of {} that begins with rank {}",
              addends.tree, addends.first_rank);
  kernels::sum_as_trees_on_host(inputs.data(), num_inputs, addends.tree, out, addends.onto_out);
}

/// Finishes a sum whose type differs from out's: one more addition, or a rounding.
inline void add_or_cast(Stream& stream, const Tensor& sum, const Tensor& out, bool onto_out) {
  if (onto_out) {
    kernels::add(stream, sum, out);
  } else {
    kernels::cast(stream, sum, out);
  }
}

/// What a peer has brought to an all_to_all_v for `rank`, which expects `expected`.
inline Tensor brought_for(const Contribution& brought, int rank, const ElementRange& expected) {
  const ElementRange range = (*brought.sends)[static_cast<std::size_t>(rank)];
  SHERD_CHECK(range.count == expected.count, "all_to_all_v of {}: {} elements, not {}",
              brought.label, range.count, expected.count);
  return brought.data.part(range.first, range.count);
}

/// The part of `full` that `rank` owns.
inline Tensor slice_of(const Communicator& communicator, const Tensor& full, int rank) {
  const std::int64_t count = full.numel / communicator.world_size();
  return full.part(rank * count, count);
}

}  // namespace sherd::sharding
