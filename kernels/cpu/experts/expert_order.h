/// The rows of all tokens, sorted by expert, then by token.
#pragma once

#include "kernels/expert_pieces.h"

namespace sherd::kernels::cpu {

class ExpertRowOrder {
 public:
  /// Sorts into `memory`, i32 [experts_order_numel].
  ExpertRowOrder(const ExpertsShape& shape, const ConstTensor& chosen, const Tensor& memory);
  /// An order that is in `memory` already.
  ExpertRowOrder(const ExpertsShape& shape, const ConstTensor& memory)
      : shape_(shape),
        token_(memory.as<std::int32_t>()),
        row_(token_ + shape.tokens * shape.per_token),
        begin_(row_ + shape.tokens * shape.per_token) {}

  /// Of each row.
  const std::int32_t* tokens() const { return token_; }
  /// Of choice t k + j; -1: the token isn't routed.
  std::int32_t row_of(std::int64_t choice) const { return row_[choice]; }
  std::int64_t num_rows() const { return begin_[shape_.experts]; }
  std::int64_t first_row_of(std::int64_t expert) const { return begin_[expert]; }
  std::int64_t rows_of(std::int64_t expert) const { return begin_[expert + 1] - begin_[expert]; }

  /// Calls `round(pieces)` for all rows, as many whole pieces at a time as there is room for.
  template <class Round>
  void for_each_round(const Round& round) const {
    for_each_expert_round(
        shape_, [this](std::int64_t e) { return rows_of(e); }, round);
  }

 private:
  const ExpertsShape& shape_;
  const std::int32_t *token_, *row_, *begin_;
};

}  // namespace sherd::kernels::cpu
