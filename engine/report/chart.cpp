#include "engine/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/report/page.h"

namespace sherd::engine {
namespace {

constexpr double kWidth = 1000, kHeight = 300;  // of the SVG's own units
constexpr std::size_t kNumColours = 8;
constexpr int kMostTicks = 5;
constexpr double kLogarithmicFrom = 50;

/// Positions of values and steps in the picture.
class Axes {
 public:
  explicit Axes(const Chart& chart) : bytes_(chart.bytes) {
    double lowest_above_zero = std::numeric_limits<double>::infinity();
    for (const ChartLine& line : chart.lines) {
      for (const CurvePoint& point : *line.curve) {
        last_step_ = std::max(last_step_, static_cast<double>(point.step));
        if (!std::isfinite(point.value)) continue;
        empty_ = false;
        low_ = std::min(low_, point.value);
        high_ = std::max(high_, point.value);
        if (point.value > 0.0) lowest_above_zero = std::min(lowest_above_zero, point.value);
      }
    }
    if (empty_) return;
    logarithmic_ = !chart.from_zero && low_ > 0.0 && high_ > kLogarithmicFrom * lowest_above_zero;
    if (chart.from_zero) low_ = std::min(low_, 0.0);
    if (logarithmic_) {
      low_ = std::log10(low_);
      high_ = std::log10(high_);
    }
    const double room = high_ > low_ ? 0.04 * (high_ - low_) : std::max(std::abs(high_), 1.0) * 0.1;
    high_ += room;
    if (!chart.from_zero) low_ -= room;
  }

  bool empty() const { return empty_; }
  bool logarithmic() const { return logarithmic_; }
  double share_of_step(double step) const { return step / std::max(last_step_, 1.0); }
  double share_of_value(double value) const {
    return ((logarithmic_ ? std::log10(value) : value) - low_) / (high_ - low_);
  }
  double x(double step) const { return kWidth * share_of_step(step); }
  double y(double value) const { return kHeight * (1.0 - share_of_value(value)); }

  std::vector<double> step_ticks() const { return ticks(0, last_step_, kMostTicks); }
  std::vector<double> value_ticks() const {
    if (!logarithmic_) {
      double unit = 1;
      while (bytes_ && high_ >= 1024 * unit) unit *= 1024;
      std::vector<double> values = ticks(low_ / unit, high_ / unit, kMostTicks);
      for (double& value : values) value *= unit;
      return values;
    }
    const double apart = std::max(1.0, std::ceil((high_ - low_) / kMostTicks));
    std::vector<double> values;
    for (double power = std::ceil(low_); power <= high_; power += apart) {
      values.push_back(std::pow(10.0, power));
    }
    return values;
  }

 private:
  bool bytes_, empty_ = true, logarithmic_ = false;
  double low_ = std::numeric_limits<double>::infinity();
  double high_ = -std::numeric_limits<double>::infinity();
  double last_step_ = 0;
};

bool has_value(const Stretch& stretch) {
  return std::isfinite(stretch.mean);
}

// One band for each part of the line that isn't interrupted.
std::string band_path(const std::vector<Stretch>& stretches, const Axes& axes) {
  std::string path;
  for (auto begin = stretches.begin(); begin != stretches.end();) {
    const auto end = std::find_if_not(begin, stretches.end(), has_value);
    for (auto at = begin; at != end; ++at) {
      path += fmt::format("{}{:.1f} {:.1f}", at == begin ? 'M' : 'L', axes.x(at->step),
                          axes.y(at->high));
    }
    for (auto at = end; at != begin;) {
      --at;
      path += fmt::format("L{:.1f} {:.1f}", axes.x(at->step), axes.y(at->low));
    }
    begin = std::find_if(end, stretches.end(), has_value);
  }
  return path;
}

std::string line_path(const std::vector<Stretch>& stretches, const Axes& axes) {
  std::string path;
  bool begun = false;
  for (const Stretch& stretch : stretches) {
    if (has_value(stretch)) {
      path += fmt::format("{}{:.1f} {:.1f}", begun ? 'L' : 'M', axes.x(stretch.step),
                          axes.y(stretch.mean));
      if (!begun) path += "h0";  // a point alone is a dot
    }
    begun = has_value(stretch);
  }
  return path;
}

std::string marks_svg(const ChartLine& line, const Axes& axes) {
  constexpr double kTop = kHeight - 16;
  std::string path;
  for (const std::int64_t step : line.marks) {
    path += fmt::format("M{:.1f} {}V{}", axes.x(static_cast<double>(step)), kTop, kHeight);
  }
  if (path.empty()) return "";
  return fmt::format("<path class=\"mark\" style=\"stroke:{}\" d=\"{}\"/>", run_colour(line.run),
                     path);
}

std::string line_svg(const ChartLine& line, const Axes& axes, std::size_t& steps_in_one) {
  const auto stretches = stretches_of(*line.curve, kMostStretches);
  if (stretches.empty()) return "";
  const std::string colour = run_colour(line.run);
  std::string svg;
  if (stretches.size() < line.curve->size()) {
    steps_in_one =
        std::max(steps_in_one, (line.curve->size() + kMostStretches - 1) / kMostStretches);
    svg = fmt::format("<path class=\"band\" style=\"fill:{}\" d=\"{}\"/>", colour,
                      band_path(stretches, axes));
  }
  const char* dashed = line.run % (2 * kNumColours) < kNumColours ? "" : " dashed";
  return svg + fmt::format("<path class=\"line{}\" data-run=\"{}\" style=\"stroke:{}\" d=\"{}\"/>",
                           dashed, line.run, colour, line_path(stretches, axes));
}

std::string legend(const Chart& chart) {
  if (chart.lines.size() < 2) return "";
  std::string html = "<ul class=\"legend\">";
  for (const ChartLine& line : chart.lines) {
    if (line.curve->empty()) continue;
    html += fmt::format("<li><i style=\"background:{}\"></i>{}</li>", run_colour(line.run),
                        escaped(line.name));
  }
  return html + "</ul>";
}

}  // namespace

const std::string_view kChartStyle = R"(
:root { --run-0: #24568f; --run-1: #d0661a; --run-2: #23704f; --run-3: #b4486c; --run-4: #6b4c96;
  --run-5: #a8830c; --run-6: #2e8c9e; --run-7: #6d5a4a; }
@media (prefers-color-scheme: dark) {
  :root { --run-0: #6aa5e6; --run-1: #f0954f; --run-2: #55bf92; --run-3: #e37fa4;
    --run-4: #b49ae0; --run-5: #e2c04c; --run-6: #62c3d4; --run-7: #c0a993; }
}
.charts { display: grid; grid-template-columns: 1fr 1fr; gap: 0 18px; }
.charts section { min-width: 0; }
.charts section:first-child { grid-column: 1 / -1; }
.charts section:first-child .plot { height: 280px; }
.charts .legend { overflow-wrap: anywhere; }
.charts .legend i { height: 4px; vertical-align: 4px; }
.plot { position: relative; height: 220px; margin: 16px 6px 26px 56px; }
.plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.plot path { vector-effect: non-scaling-stroke; }
.plot .grid { stroke: var(--line); stroke-width: 1; fill: none; }
.plot .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.plot .dashed { stroke-dasharray: 5 4; }
.plot .band { opacity: .16; }
.plot .mark { fill: none; stroke-width: 2; }
.plot span { position: absolute; font-size: .78rem; line-height: 1; color: var(--soft);
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.plot .value { right: 100%; padding-right: 8px; transform: translateY(50%); }
.plot .step { top: 100%; padding-top: 9px; transform: translateX(-50%); }
@media (max-width: 800px) { .charts { grid-template-columns: 1fr; }
  .plot, .charts section:first-child .plot { height: 190px; } }
)";

std::string run_colour(std::size_t run) {
  return fmt::format("var(--run-{})", run % kNumColours);
}

std::vector<Stretch> stretches_of(const Curve& curve, std::size_t most) {
  const std::size_t length = std::max<std::size_t>((curve.size() + most - 1) / most, 1);
  std::vector<Stretch> stretches;
  for (std::size_t begin = 0; begin < curve.size(); begin += length) {
    const std::size_t end = std::min(begin + length, curve.size());
    Stretch stretch{.low = std::numeric_limits<double>::infinity(),
                    .high = -std::numeric_limits<double>::infinity()};
    for (std::size_t i = begin; i < end; ++i) {
      stretch.mean += curve[i].value / static_cast<double>(end - begin);
      stretch.low = std::min(stretch.low, curve[i].value);
      stretch.high = std::max(stretch.high, curve[i].value);
    }
    stretch.step = 0.5 * static_cast<double>(curve[begin].step + curve[end - 1].step);
    stretches.push_back(stretch);
  }
  return stretches;
}

std::vector<double> ticks(double low, double high, int most) {
  // Nearer numbers have no ticks between them.
  if (!(high - low > 1e-12 * std::max(std::abs(low), std::abs(high)))) return {low};
  double apart = std::pow(10.0, std::floor(std::log10((high - low) / most)));
  for (const double factor : {2.0, 2.5, 2.0}) {  // 1, 2, 5, 10
    if (std::floor(high / apart) - std::ceil(low / apart) < most) break;
    apart *= factor;
  }
  std::vector<double> values;
  // -0 + 0 is 0, and is labelled so.
  for (double i = std::ceil(low / apart) + 0.0; i * apart <= high; ++i) {
    values.push_back(i * apart);
  }
  return values;
}

std::string chart_section(const Chart& chart) {
  const Axes axes(chart);
  if (axes.empty()) return "";
  std::string grid, lines, labels;
  for (const double value : axes.value_ticks()) {
    grid += fmt::format("M0 {0:.1f}H{1}", axes.y(value), kWidth);
    labels += fmt::format("<span class=\"value\" style=\"bottom:{:.2f}%\">{}</span>",
                          100.0 * axes.share_of_value(value), escaped(chart.label(value)));
  }
  for (const double step : axes.step_ticks()) {
    labels += fmt::format("<span class=\"step\" style=\"left:{:.2f}%\">{:.6g}</span>",
                          100.0 * axes.share_of_step(step), step);
  }
  std::size_t steps_in_one = 1;
  bool has_marks = false;
  for (const ChartLine& line : chart.lines) {
    lines += line_svg(line, axes, steps_in_one) + marks_svg(line, axes);
    has_marks |= !line.marks.empty();
  }
  std::string notes;
  if (axes.logarithmic()) notes = "logarithmic";
  if (steps_in_one > 1) {
    notes += fmt::format("{}means of {} steps; band: lowest to highest value",
                         notes.empty() ? "" : "; ", steps_in_one);
  }
  if (has_marks) {
    notes += fmt::format("{}strokes below: {}", notes.empty() ? "" : "; ", chart.marks);
  }
  return fmt::format(
      "<section>\n<h2>{0}</h2>\n<p class=\"small soft\">{1}</p>\n<div class=\"plot\" role=\"img\" "
      "aria-label=\"{0} over steps\"><svg viewBox=\"0 0 {2} {3}\" preserveAspectRatio=\"none\">"
      "<path class=\"grid\" d=\"{4}\"/>{5}</svg>{6}</div>\n{7}</section>\n",
      escaped(chart.title), notes.empty() ? "over steps" : "over steps; " + notes, kWidth, kHeight,
      grid, lines, labels, legend(chart));
}

}  // namespace sherd::engine
