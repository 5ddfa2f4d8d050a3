/// Elements of kernels/experts.h: rows of tokens in the order of experts, and back.
#pragma once

#include "kernels/device_common/number.h"
#include "kernels/device_common/walk.h"

namespace sherd::kernels::device_common {

/// Of thread `thread` among `threads`, which share `choices` in runs: its run.
struct ChoiceRun {
  std::int64_t first, last;
};
SHERD_HOST_DEVICE inline ChoiceRun run_of(std::int64_t choices, int thread, int threads) {
  const std::int64_t of_one = ceil_div(choices, threads), first = thread * of_one;
  const std::int64_t last = first + of_one < choices ? first + of_one : choices;
  return {first < last ? first : last, last};
}

/// Of rows that are sorted by expert: the choice that each belongs to.
struct ChoiceOfRow {
  const std::int32_t *token, *row;  ///< of experts_order_numel; null: a row's number is its own
  std::int64_t first;               ///< of the round
  int per_token;

  SHERD_HOST_DEVICE std::int64_t operator()(std::int64_t of_round) const {
    const std::int64_t own = first + of_round;
    if (token == nullptr) return own;
    std::int64_t choice = token[own] * static_cast<std::int64_t>(per_token);
    while (row[choice] != own) ++choice;
    return choice;
  }
};

/// Runs of experts that one launch of biases' kernels takes, and their number for all.
inline constexpr int kRunsOfALaunch = 64;
inline constexpr std::int64_t launches_of_runs(std::int64_t runs) {
  return ceil_div(runs, kRunsOfALaunch);
}

/// out[r] = x[token[r]], for rows of `width` elements. T: anything of an element's size, or of 16
/// bytes.
template <class T>
struct GatherRows {
  const T* x;
  const std::int32_t* token;
  std::int64_t width;
  T* out;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    for (std::int64_t i = first; i < first + N; ++i) {
      out[i] = x[token[i / width] * width + i % width];
    }
  }
};

/// out[r] = weight of row r times x[token[r]], rounded once.
template <class T>
struct GatherWeighedRows {
  const T* x;
  const std::int32_t* token;
  ChoiceOfRow choice_of;
  const float* weights;
  std::int64_t width;
  T* out;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    for (std::int64_t i = first; i < first + N; ++i) {
      const std::int64_t row = i / width;
      out[i] = narrow<T>(weights[choice_of(row)] * widen(x[token[row] * width + i % width]));
    }
  }
};

/// sums[t] += weight of each of its rows in [first_row, first_row + count) times that row, in the
/// order of experts. Without weights: 1.
template <class T>
struct CombineRows {
  const std::int32_t* row;  ///< of each choice; -1: none
  const T* rows;
  const float* weights;
  std::int64_t first_row, count, width;
  int per_token;
  float* sums;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    const std::int64_t t = first / width, d = first % width;
    float sum[N];
    bool any = false;
    for (int j = 0; j < per_token; ++j) {
      const std::int64_t choice = t * per_token + j, own = row[choice] - first_row;
      if (row[choice] < 0 || own < 0 || own >= count) continue;
      if (!any) load<N>(sums + first, sum);
      any = true;
      const float weight = weights != nullptr ? weights[choice] : 1.0f;
      float value[N];
      load_wide<N>(rows + own * width + d, value);
      for (int i = 0; i < N; ++i) sum[i] += weight * value[i];
    }
    if (any) store<N>(sums + first, sum);
  }
};

/// A number of each choice to that of its row, and back. A choice without a row gets 0.
struct ChoicesToRows {
  const std::int32_t* row;
  const float* from;
  float* to;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    for (std::int64_t i = first; i < first + N; ++i) {
      if (row[i] >= 0) to[row[i]] = from[i];
    }
  }
};
struct RowsToChoices {
  const std::int32_t* row;
  const float* from;
  float* to;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    for (std::int64_t i = first; i < first + N; ++i) to[i] = row[i] < 0 ? 0.0f : from[row[i]];
  }
};

/// y = sums (+ more) (+ shared), rounded once.
template <class T>
struct FinishSums {
  const float *sums, *more;
  const T* shared;
  T* y;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    float sum[N], addend[N];
    load<N>(sums + first, sum);
    if (more != nullptr) {
      load<N>(more + first, addend);
      for (int i = 0; i < N; ++i) sum[i] += addend[i];
    }
    if (shared != nullptr) {
      load_wide<N>(shared + first, addend);
      for (int i = 0; i < N; ++i) sum[i] += addend[i];
    }
    store_narrow<N>(y + first, sum);
  }
};

}  // namespace sherd::kernels::device_common
