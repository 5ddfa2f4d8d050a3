/// Curves of several runs in one picture, as HTML: an SVG that stretches to any width, and labels
/// next to it that keep their size.
///
/// A long curve is divided into at most kMostStretches stretches of equally many steps. It is drawn
/// as a line through their means, and a band from the lowest to the highest value. Values that
/// aren't numbers interrupt the line.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/report/run_history.h"

namespace sherd::engine {

inline constexpr std::size_t kMostStretches = 150;

struct ChartLine {
  std::size_t run = 0;  ///< decides its colour
  std::string_view name{};
  const Curve* curve = nullptr;
  std::vector<std::int64_t> marks{};  ///< steps, as short strokes below the curve
};
struct Chart {
  std::string_view title;
  std::function<std::string(double)> label{};  ///< of a value on the axis
  bool from_zero = false;                      ///< the axis begins there
  bool bytes = false;                          ///< axis labels are round in KiB, MiB, GiB
  std::string_view marks{};                    ///< what they are
  std::vector<ChartLine> lines{};
};

/// A section of a page, with the names of its lines if there are several; "" if no curve has a
/// number. If all values are positive and the highest is more than fifty times the lowest, the axis
/// is logarithmic and labelled so.
std::string chart_section(const Chart& chart);
/// The style of charts, and the colours of runs.
extern const std::string_view kChartStyle;
/// CSS of a run's colour. After the eighth run, colours repeat with dashed lines.
std::string run_colour(std::size_t run);

/// Consecutive points of a curve, drawn as one.
struct Stretch {
  double step = 0, mean = 0, low = 0,
         high = 0;  ///< `step` in their middle; NaN if one has no value
};
std::vector<Stretch> stretches_of(const Curve& curve, std::size_t most);

/// Round numbers in [low, high], at most `most`: multiples of 1, 2 or 5 times a power of ten.
std::vector<double> ticks(double low, double high, int most);

}  // namespace sherd::engine
