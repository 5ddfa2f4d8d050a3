#include "kernels/cpu/adafactor.h"

#include <limits>

#include "kernels/cpu/update_blocks.h"

namespace sherd::kernels::cpu {
namespace {

constexpr std::int64_t kColumns = 16;  // of one task: a cache line of gradients
constexpr std::int64_t kRows = kBlock;

// The rows of the box that a segment touches, the first and the last perhaps in part.
struct Rows {
  Rows(const AdafactorPlace& place, const UpdateSegment& segment)
      : place(place),
        segment(segment),
        first(place.first / place.columns),
        end((place.first + segment.count + place.columns - 1) / place.columns) {}

  // Columns [from, to) of row `row` that are in the segment.
  std::pair<std::int64_t, std::int64_t> columns_of(std::int64_t row) const {
    const std::int64_t begin = row * place.columns;
    return {std::max<std::int64_t>(0, place.first - begin),
            std::min(place.columns, place.first + segment.count - begin)};
  }
  // The place of an element in the slice.
  std::int64_t at(std::int64_t row, std::int64_t column) const {
    return segment.first + row * place.columns + column - place.first;
  }

  const AdafactorPlace& place;
  const UpdateSegment& segment;
  std::int64_t first, end;
};

void add_to(Tensor sums, std::int64_t number, const ExactSum& sum) {
  double* const numbers = sums.as<double>() + number * ExactSum::kNumbers;
  ExactSum total(std::span<const double>(numbers, ExactSum::kNumbers));
  total.add(sum);
  std::ranges::copy(total.numbers(), numbers);
}

// g = gradient_scale * grad as floats.
template <class G>
class Gradient {
 public:
  explicit Gradient(const UpdateCommon& common)
      : gradient_(common.gradient.as<G>()), scale_(common.gradient_scale) {}

  void operator()(std::int64_t first, int count, float* g) const {
    BlockScratch scratch;
    const float* grad = load_block(gradient_ + first, count, scratch);
#pragma omp simd
    for (int i = 0; i < count; ++i) g[i] = scale_ * grad[i];
  }

 private:
  const G* gradient_;
  float scale_;
};

template <class G>
void add_rows(ThreadTeam& team, const Rows& rows, const Gradient<G>& gradient, Tensor sums) {
  if (rows.place.row < 0) return;
  parallel_rows(team, rows.end - rows.first, rows.place.columns, [&](std::int64_t index) {
    const std::int64_t row = rows.first + index;
    const auto [from, to] = rows.columns_of(row);
    ExactSum sum;
    {
      ExactSquares squares(sum);
      for_each_block(rows.at(row, from), rows.at(row, to), [&](std::int64_t first, int count) {
        alignas(64) float g[kBlock];
        gradient(first, count, g);
        squares.add(g, count);
      });
    }
    add_to(sums, rows.place.row + row, sum);
  });
}

// A task adds some columns of all rows; each column's numbers are gathered, since exact sums add
// many numbers faster than one.
template <class G>
void add_columns(ThreadTeam& team, const Rows& rows, const Gradient<G>& gradient, Tensor sums) {
  const AdafactorPlace& place = rows.place;
  team.parallel_for((place.columns + kColumns - 1) / kColumns, [&](std::int64_t task, int) {
    const std::int64_t begin = task * kColumns, end = std::min(place.columns, begin + kColumns);
    std::array<ExactSum, kColumns> sum;
    for (std::int64_t first_row = rows.first; first_row < rows.end; first_row += kRows) {
      alignas(64) float g[kColumns][kRows];
      std::array<int, kColumns> counts{};
      for (std::int64_t row = first_row; row < std::min(rows.end, first_row + kRows); ++row) {
        const auto [from, to] = rows.columns_of(row);
        const std::int64_t left = std::max(begin, from), right = std::min(end, to);
        if (left >= right) continue;
        alignas(64) float of_row[kColumns];
        gradient(rows.at(row, left), static_cast<int>(right - left), of_row);
        for (std::int64_t column = left; column < right; ++column) {
          const auto c = static_cast<std::size_t>(column - begin);
          g[c][counts[c]++] = of_row[column - left];
        }
      }
      for (std::size_t c = 0; c < static_cast<std::size_t>(end - begin); ++c) {
        ExactSquares(sum[c]).add(g[c], counts[c]);
      }
    }
    for (std::int64_t column = begin; column < end; ++column) {
      add_to(sums, place.column + column, sum[static_cast<std::size_t>(column - begin)]);
    }
  });
}

// u of a block of a segment.
template <class G>
class Direction {
 public:
  explicit Direction(const AdafactorUpdate& args)
      : args_(args),
        gradient_(args.common),
        least_(std::max(args.eps * args.eps, std::numeric_limits<float>::min())) {}

  void operator()(std::size_t index, std::int64_t first, int count, float* u) const {
    const AdafactorPlace& place = args_.places[index];
    const float* numbers = args_.variances.as<float>();
    const float scale = args_.scales.as<float>()[place.scale];
    gradient_(first, count, u);
    std::int64_t element = place.first + first - args_.common.segments[index].first;
    for (int done = 0; done < count;) {
      const std::int64_t row = element / place.columns, column = element % place.columns;
      const int now =
          static_cast<int>(std::min<std::int64_t>(count - done, place.columns - column));
      const float of_row = place.row < 0 ? scale : numbers[place.row + row] * scale;
      const float* of_column = numbers + place.column + column;
      const float least = least_;
      float* out = u + done;
#pragma omp simd
      for (int i = 0; i < now; ++i) {
        const float v = of_row * of_column[i];
        out[i] = out[i] / std::sqrt(v < least ? least : v);
      }
      done += now;
      element += now;
    }
  }

 private:
  const AdafactorUpdate& args_;
  Gradient<G> gradient_;
  float least_;
};

// The mean of g^2 moves a variance by its share.
float moved(float variance, double mean, double fresh) {
  return static_cast<float>(variance + fresh * (mean - variance));
}

}  // namespace

void adafactor_squares(ThreadTeam& team, const AdafactorUpdate& args, Tensor sums) {
  dispatch_float(args.common.gradient.dtype, [&]<class G>(G) {
    const Gradient<G> gradient(args.common);
    for (std::size_t i = 0; i < args.places.size(); ++i) {
      if (!args.places[i].counts) continue;
      const Rows rows(args.places[i], args.common.segments[i]);
      add_rows(team, rows, gradient, sums);
      add_columns(team, rows, gradient, sums);
    }
  });
}

void adafactor_variances(ThreadTeam& team, const AdafactorVariances& args) {
  const double* sums = args.sums.as<double>();
  float* numbers = args.variances.as<float>();
  team.parallel_for(std::ssize(args.matrices), [&](std::int64_t index, int) {
    const AdafactorMatrix& matrix = args.matrices[static_cast<std::size_t>(index)];
    const auto move = [&](std::int64_t first, std::int64_t count, std::int64_t addends) {
      for (std::int64_t i = first; i < first + count; ++i) {
        const double mean = sums[i * ExactSum::kNumbers] / static_cast<double>(addends);
        numbers[i] = moved(numbers[i], mean, args.fresh);
      }
    };
    move(matrix.column, matrix.columns, matrix.rows);
    double scale = 1.0;
    if (matrix.row >= 0) {
      move(matrix.row, matrix.rows, matrix.columns);
      double sum = 0.0;
      for (std::int64_t i = 0; i < matrix.rows; ++i) sum += numbers[matrix.row + i];
      scale = 1.0 / std::max<double>(sum / static_cast<double>(matrix.rows), args.eps);
    }
    args.scales.as<float>()[matrix.scale] = static_cast<float>(scale);
  });
}

void adafactor_norms(ThreadTeam& team, const AdafactorUpdate& args, Tensor sums) {
  const UpdateCommon& common = args.common;
  const float* parameter = common.parameter.as<float>();
  dispatch_float(common.gradient.dtype, [&]<class G>(G) {
    const Direction<G> direction(args);
    segment_sums(
        team, common, sums,
        [&](const UpdateSegment& segment, std::int64_t first, int count, float* a, float* b) {
          std::copy_n(parameter + first, count, a);
          direction(static_cast<std::size_t>(&segment - common.segments.data()), first, count, b);
        });
  });
}

void adafactor_apply(ThreadTeam& team, const AdafactorUpdate& args, std::span<const float> ratios) {
  const UpdateCommon& common = args.common;
  float* parameter = common.parameter.as<float>();
  dispatch_float(common.gradient.dtype, [&]<class G>(G) {
    const Direction<G> direction(args);
    parallel_segment_blocks(team, common, [&](std::size_t index, std::int64_t first, int count) {
      const float shrink = common.lr * common.segments[index].weight_decay, rate = ratios[index];
      alignas(64) float u[kBlock];
      direction(index, first, count, u);
      float* p = parameter + first;
#pragma omp simd
      for (int i = 0; i < count; ++i) p[i] = (p[i] - shrink * p[i]) - rate * u[i];
    });
  });
}

}  // namespace sherd::kernels::cpu
