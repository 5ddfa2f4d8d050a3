#include "kernels/cpu/low_rank.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/lane_sum.h"

namespace sherd::kernels::cpu {
namespace {

constexpr double kDependent = 1e-5;
constexpr std::int64_t kColumnsOfTask = 1024;

// In fixed lanes, so that the compiler vectorises it without choosing an order.
constexpr std::int64_t kLanes = 16;
double dot(const float* a, const float* b, std::int64_t length) {
  double lane[kLanes] = {};
  std::int64_t k = 0;
  for (; k + kLanes <= length; k += kLanes) {
#pragma omp simd
    for (std::int64_t i = 0; i < kLanes; ++i) {
      lane[i] += static_cast<double>(a[k + i]) * static_cast<double>(b[k + i]);
    }
  }
  for (std::int64_t i = 0; k < length; ++i, ++k) lane[i] += static_cast<double>(a[k]) * b[k];
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
}

void subtract_others(float* x, const float* others, std::int64_t count, std::int64_t length) {
  for (std::int64_t other = 0; other < count; ++other) {
    const float* const y = others + other * length;
    const double share = dot(x, y, length);
    for (std::int64_t k = 0; k < length; ++k) x[k] = static_cast<float>(x[k] - share * y[k]);
  }
}

// Makes vector `c` orthonormal to those before it. False: it depends on them.
bool normalise(float* x, std::int64_t c, std::int64_t length) {
  float* const own = x + c * length;
  const double before = std::sqrt(dot(own, own, length));
  if (!std::isfinite(before)) {
    std::fill_n(own, length, std::numeric_limits<float>::quiet_NaN());
    return true;
  }
  subtract_others(own, x, c, length);
  const double after = std::sqrt(dot(own, own, length));
  if (after <= kDependent * before) return false;
  for (std::int64_t k = 0; k < length; ++k) own[k] = static_cast<float>(own[k] / after);
  subtract_others(own, x, c, length);
  const double again = std::sqrt(dot(own, own, length));
  for (std::int64_t k = 0; k < length; ++k) own[k] = static_cast<float>(own[k] / again);
  return true;
}

}  // namespace

void low_rank_rows(ThreadTeam& team, const LowRankShape& shape, const float* matrix, const float* q,
                   float* p) {
  const auto [rows, columns, rank] = shape;
  parallel_rows(team, rows, columns * rank, [=](std::int64_t i) {
    const float* const row = matrix + i * columns;
    for (std::int64_t c = 0; c < rank; ++c) {
      const float* const vector = q + c * columns;
      LaneSum sum;
      sum.add(
          static_cast<int>(columns), [=](int j) { return load8(row + j) * load8(vector + j); },
          [=](int j) { return row[j] * vector[j]; });
      p[c * rows + i] = sum.total();
    }
  });
}

void low_rank_columns(ThreadTeam& team, const LowRankShape& shape, const float* matrix,
                      const float* p, float* q) {
  const auto [rows, columns, rank] = shape;
  const std::int64_t tasks = (columns + kColumnsOfTask - 1) / kColumnsOfTask;
  team.parallel_for(tasks, [=](std::int64_t task, int) {
    const std::int64_t begin = task * kColumnsOfTask;
    const std::int64_t count = std::min(kColumnsOfTask, columns - begin);
    for (std::int64_t c = 0; c < rank; ++c) std::fill_n(q + c * columns + begin, count, 0.0f);
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* const row = matrix + i * columns + begin;
      for (std::int64_t c = 0; c < rank; ++c) {
        const float weight = p[c * rows + i];
        float* const sum = q + c * columns + begin;
#pragma omp simd
        for (std::int64_t j = 0; j < count; ++j) sum[j] += row[j] * weight;
      }
    }
  });
}

void orthonormalise(std::int64_t count, std::int64_t length, float* x,
                    const std::optional<RandomAddress>& redraw) {
  for (std::int64_t c = 0; c < count; ++c) {
    if (normalise(x, c, length)) continue;
    float* const own = x + c * length;
    if (redraw) {
      RandomAddress address = *redraw;
      address.step = static_cast<std::uint32_t>(c);
      for (std::int64_t k = 0; k < length; ++k) {
        const std::uint32_t word = random_word(address, static_cast<std::uint64_t>(k));
        own[k] = static_cast<float>(static_cast<std::int32_t>(word)) * 0x1p-31f;
      }
      if (normalise(x, c, length)) continue;
    }
    std::fill_n(own, length, 0.0f);
  }
}

void next_basis(ThreadTeam& team, std::int64_t count, std::int64_t length, float scale, float* r,
                float* q) {
  parallel_rows(team, count, length, [=](std::int64_t c) {
    float *own = r + c * length, *basis = q + c * length;
    const double norm = std::sqrt(dot(own, own, length));
    for (std::int64_t k = 0; k < length; ++k) {
      if (norm != 0.0) basis[k] = static_cast<float>(own[k] / norm);
      own[k] *= scale;
    }
  });
}

void low_rank_restore(ThreadTeam& team, const LowRankShape& shape, const LowRankParts& parts,
                      std::int64_t first, Tensor elements, Tensor error) {
  const auto [rows, columns, rank] = shape;
  const std::int64_t first_row = first / columns;
  const std::int64_t last_row = (first + elements.numel - 1) / columns;
  const float *p = parts.p.as<float>(), *own = parts.own_q.as<float>(),
              *all = parts.sum_q.as<float>();
  float *m = elements.as<float>(), *e = error.as<float>();
  const std::int64_t count = elements.numel;
  const std::int64_t width = columns, height = rows, vectors = rank;
  parallel_rows(team, last_row - first_row + 1, columns * rank, [=](std::int64_t number) {
    const std::int64_t i = first_row + number;
    const std::int64_t begin = std::max(first, i * width);
    const std::int64_t end = std::min(first + count, (i + 1) * width);
    const std::int64_t j = begin - i * width;  // the first column
    float *to = m + (begin - first), *rest = e + (begin - first);
    std::vector<float> mine(static_cast<std::size_t>(end - begin)), sum(mine.size());
    for (std::int64_t c = 0; c < vectors; ++c) {
      const float weight = p[c * height + i];
      const float *a = own + c * width + j, *b = all + c * width + j;
      float *x = mine.data(), *y = sum.data();
#pragma omp simd
      for (std::int64_t k = 0; k < end - begin; ++k) {
        x[k] += weight * a[k];
        y[k] += weight * b[k];
      }
    }
    for (std::int64_t k = 0; k < end - begin; ++k) {
      rest[k] = to[k] - mine[static_cast<std::size_t>(k)];
      to[k] = sum[static_cast<std::size_t>(k)];
    }
  });
}

}  // namespace sherd::kernels::cpu
