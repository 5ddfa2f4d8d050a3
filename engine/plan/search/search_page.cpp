// The result of a search as a page: time against memory, drawn. No script, nothing from the network.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/byte_size.h"
#include "core/human_text.h"
#include "engine/plan/search/search.h"
#include "engine/plan/search/search_text.h"
#include "engine/report/chart.h"
#include "engine/report/page.h"

namespace sherd::engine {
namespace {

constexpr double kWidth = 760, kHeight = 380, kLeft = 84, kRight = 24, kTop = 20, kBottom = 56;

constexpr std::string_view kStyle = R"(
svg { display: block; width: 100%; height: auto; margin-top: 12px; }
svg text { font-size: 13px; fill: var(--soft); }
svg .grid { stroke: var(--line); }
svg .limit { stroke: var(--bad); stroke-dasharray: 6 4; stroke-width: 1.5; }
svg .front { fill: none; stroke: var(--soft); stroke-width: 1.5; }
svg .point { fill: var(--soft); }
svg .best { fill: var(--good); }
svg .own { fill: none; stroke: var(--ink); stroke-width: 2; }
svg text.name { fill: var(--ink); font-weight: 600; }
)";

// The axis of seconds is logarithmic if the slowest takes several times as long as the fastest.
class Axes {
 public:
  explicit Axes(const SearchResult& result) {
    const auto see = [this](const FoundLayout& layout) {
      low_ = std::min(low_, layout.seconds);
      high_ = std::max(high_, layout.seconds);
      bytes_ = std::max(bytes_, static_cast<double>(layout.needed_bytes));
    };
    bytes_ = static_cast<double>(result.limit.bytes);
    low_ = high_ = result.own.seconds;
    see(result.own);
    for (const auto* layouts : {&result.best, &result.tradeoff}) {
      for (const FoundLayout& layout : *layouts) see(layout);
    }
    is_logarithmic_ = high_ > 4.0 * low_;
    bytes_ *= 1.04;
    low_ = is_logarithmic_ ? low_ / 1.1 : 0.0;
    high_ *= is_logarithmic_ ? 1.1 : 1.06;
  }

  double x(double bytes) const { return kLeft + bytes / bytes_ * (kWidth - kLeft - kRight); }
  double y(double seconds) const {
    const double place = is_logarithmic_ ? std::log(seconds / low_) / std::log(high_ / low_)
                                         : (seconds - low_) / (high_ - low_);
    return kHeight - kBottom - place * (kHeight - kTop - kBottom);
  }

  std::string grid() const {
    std::string svg;
    for (const double seconds : values_of_seconds()) {
      svg += fmt::format(
          "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
          "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
          kLeft, kWidth - kRight, y(seconds), kLeft - 8, y(seconds) + 4, seconds_text(seconds));
    }
    const ByteUnit unit = unit_for(static_cast<std::int64_t>(bytes_));
    const auto size = static_cast<double>(unit.bytes);
    for (const double value : ticks(0.0, bytes_ / size, 7)) {
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:g}</text>\n",
                         x(value * size), kHeight - kBottom + 20, value);
    }
    return svg + fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">memory, {}</text>\n",
                             kWidth - kRight, kHeight - 12, unit.name);
  }

 private:
  std::vector<double> values_of_seconds() const {
    if (!is_logarithmic_) return ticks(low_, high_, 6);
    std::vector<double> values;
    for (double power = std::pow(10.0, std::floor(std::log10(low_))); power < high_;
         power *= 10.0) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        if (power * digit > low_ && power * digit < high_) values.push_back(power * digit);
      }
    }
    return values;
  }

  double low_ = 0.0, high_ = 0.0, bytes_ = 0.0;
  bool is_logarithmic_ = false;
};

struct PointName {
  std::string text{};
  double right = 9.0, down = -7.0;  ///< of the point
};

std::string point(const Axes& axes, const FoundLayout& layout, std::string_view kind,
                  const PointName& name = {}) {
  const double x = axes.x(static_cast<double>(layout.needed_bytes)), y = axes.y(layout.seconds);
  const std::string command = layout.settings.empty() ? "the recipe as it is" : layout.command();
  std::string svg = fmt::format(
      "<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" data-bytes=\"{}\" "
      "data-seconds=\"{:.9g}\"><title>{}, {}: {}</title></circle>\n",
      kind, x, y, kind == "point" ? 4 : 6, layout.needed_bytes, layout.seconds,
      seconds_text(layout.seconds), human_bytes(layout.needed_bytes), escaped(command));
  if (name.text.empty()) return svg;
  return svg + fmt::format(
                   "<text class=\"name\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n",
                   x + name.right, y + name.down, name.right > 0.0 ? "start" : "end", name.text);
}

std::string picture(const SearchResult& result) {
  const Axes axes(result);
  std::string svg = axes.grid(), line;
  for (const FoundLayout& layout : result.tradeoff) {
    line += fmt::format("{}{:.1f},{:.1f}", line.empty() ? "" : " ",
                        axes.x(static_cast<double>(layout.needed_bytes)), axes.y(layout.seconds));
  }
  svg += fmt::format("<polyline class=\"front\" points=\"{}\"/>\n", line);
  const double limit = axes.x(static_cast<double>(result.limit.bytes));
  svg += fmt::format(
      "<line class=\"limit\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>"
      "<text x=\"{3:.1f}\" y=\"{4}\" text-anchor=\"end\">limit</text>\n",
      limit, kTop, kHeight - kBottom, limit - 6, kTop + 12);
  for (const FoundLayout& layout : result.tradeoff) svg += point(axes, layout, "point");
  int number = 0;
  for (const FoundLayout& layout : result.best) {
    ++number;
    svg += point(axes, layout, "best",
                 {.text = std::to_string(number), .down = number % 2 == 0 ? 17.0 : -7.0});
  }
  svg += point(axes, result.own, "own", {.text = "recipe", .right = -9.0, .down = 17.0});
  return fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Step time against memory "
      "{}\">\n{}</svg>\n",
      kWidth, kHeight, result.limit.shared ? "of all ranks" : "of a rank", svg);
}

std::string row(const std::string& name, const FoundLayout& layout) {
  return fmt::format(
      "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td "
      "class=\"text\"><code>{}</code></td></tr>\n",
      name, seconds_text(layout.seconds), tokens_text(layout.tokens_per_s),
      human_bytes(layout.needed_bytes), layout.settings.empty() ? "" : escaped(layout.command()));
}

std::string table(const SearchResult& result) {
  std::string html =
      "<table id=\"layouts\"><tr><th></th><th>step</th><th>speed</th><th>memory</th>"
      "<th class=\"text\">settings</th></tr>\n";
  html += row(result.own_fits ? "recipe" : "recipe (too large)", result.own);
  int number = 0;
  for (const FoundLayout& layout : result.best) html += row(fmt::format("{}", ++number), layout);
  for (const FoundLayout& layout : result.tradeoff) {
    const auto is_shown = [&](const FoundLayout& other) {
      return other.settings == layout.settings;
    };
    if (!is_shown(result.own) && std::ranges::none_of(result.best, is_shown)) {
      html += row("", layout);
    }
  }
  return html + "</table>";
}

}  // namespace

std::string search_page(const SearchResult& result, const std::string& name) {
  const std::string head = fmt::format("{} ranks, {} on a machine. Rates: {}. Memory: {}, {}.",
                                       result.ranks, result.ranks_per_machine, result.rates,
                                       human_bytes(result.limit.bytes), result.limit.origin);
  std::string assumed;
  for (const std::string& rate : result.assumed) {
    assumed += fmt::format("<p class=\"small soft\">assumed: {}</p>\n", escaped(rate));
  }
  const std::string body = fmt::format(
      "<h1>{}</h1>\n<p class=\"soft\">{}</p>\n{}<section>\n<h2>Step time against memory</h2>\n"
      "<p class=\"small soft\">Predicted times, planned memory {}. The line joins layouts that are "
      "faster than all found with less memory. Numbers are the fastest layouts; the ring "
      "is the recipe as it is.</p>\n{}</section>\n<section>\n<h2>Layouts</h2>\n{}</section>\n",
      escaped(name), escaped(head), assumed,
      result.limit.shared ? "of all ranks together" : "of a rank", picture(result),
      scrolling("Layouts", table(result)));
  return page({.title = name + ": layouts", .style = std::string(kStyle), .body = body});
}

}  // namespace sherd::engine
