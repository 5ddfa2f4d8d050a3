#include "engine/data/batch_rows.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace sherd::data {

BatchRows::BatchRows(const Batch& batch, std::int64_t seq_length)
    : batch_(batch), seq_length_(seq_length) {
  const std::int64_t T = batch.inputs.numel;
  SHERD_CHECK(batch.targets.numel == T && T % seq_length == 0,
              "{} inputs and {} targets in rows of {} tokens", T, batch.targets.numel, seq_length);
  std::fill_n(batch.inputs.as<std::int32_t>(), T, 0);
  std::fill_n(batch.targets.as<std::int32_t>(), T, kNoTarget);
  if (!has_documents()) return;
  SHERD_CHECK(batch.starts.numel == T + 1 && batch.lengths.numel == T && batch.positions.numel == T,
              "tables of {}, {} and {} for {} tokens", batch.starts.numel, batch.lengths.numel,
              batch.positions.numel, T);
  std::fill_n(batch.positions.as<std::int32_t>(), T, 0);
}

std::int64_t BatchRows::begin_row() {
  const std::int64_t token = num_rows_++ * seq_length_;
  SHERD_CHECK(token + seq_length_ <= batch_.inputs.numel, "row {} in a batch of {} tokens",
              num_rows_, batch_.inputs.numel);
  return token;
}

void BatchRows::add_document(std::int64_t token, std::int64_t length) {
  if (!has_documents()) return;
  batch_.starts.as<std::int32_t>()[num_documents_] = static_cast<std::int32_t>(token);
  batch_.lengths.as<std::int32_t>()[num_documents_++] = static_cast<std::int32_t>(length);
  std::int32_t* positions = batch_.positions.as<std::int32_t>() + token;
  std::iota(positions, positions + length, 0);
}

void BatchRows::finish() {
  if (!has_documents()) return;
  const std::int64_t T = batch_.inputs.numel;
  while (num_rows_ * seq_length_ < T) add_document(begin_row(), 0);
  while (num_documents_ < T) add_document(T, 0);
  batch_.starts.as<std::int32_t>()[T] = static_cast<std::int32_t>(T);
}

}  // namespace sherd::data
