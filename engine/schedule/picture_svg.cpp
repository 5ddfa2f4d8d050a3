#include <fmt/core.h>

#include <algorithm>

#include "engine/schedule/picture.h"

namespace sherd::schedule {
namespace {

constexpr double kWidth = 1000.0, kLabel = 60.0, kRow = 30.0, kBar = 24.0, kDigit = 7.0;

struct Look {
  ActionKind kind;
  const char* name;  ///< of the class, and of the colour
  const char* text;
};

constexpr Look kLooks[] = {
    {ActionKind::kForward, "forward", "forward"},
    {ActionKind::kBackward, "backward", "backward"},
    {ActionKind::kInputGradient, "input_gradient", "input gradients"},
    {ActionKind::kWeightGradient, "weight_gradient", "weight gradients"},
};

double svg_milliseconds(Duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

// What a title says of an action's time.
std::string time_text(const Span& span, Duration makespan, TimeUnit unit) {
  if (unit == TimeUnit::kMilliseconds) {
    return fmt::format("{:.4g} to {:.4g} ms", svg_milliseconds(span.begin),
                       svg_milliseconds(span.end));
  }
  const double percent = 100.0 / svg_milliseconds(makespan);
  return fmt::format("{:.4g} to {:.4g} % of the step", percent * svg_milliseconds(span.begin),
                     percent * svg_milliseconds(span.end));
}

bool holds_number(const Action& action, double width) {
  const std::size_t digits = std::to_string(action.micro_batch).size();
  return width >= kDigit * static_cast<double>(digits + 1);
}

std::string bar(const Action& action, const Span& span, double x, double y, double width,
                const Look& look, bool later_chunk, const std::string& time) {
  std::string svg = fmt::format(
      "<rect class=\"{}{}\" data-action=\"{}\" data-begin=\"{}\" data-end=\"{}\" x=\"{:.2f}\" "
      "y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\"><title>{}: {} of chunk {}, micro-batch {}, "
      "{}</title></rect>",
      look.name, later_chunk ? " later" : "", text_of(action), span.begin.count(), span.end.count(),
      x, y, width, kBar, text_of(action), look.text, action.chunk, action.micro_batch, time);
  if (holds_number(action, width)) {
    svg += fmt::format("<text{} x=\"{:.2f}\" y=\"{:.1f}\">{}</text>",
                       later_chunk ? " class=\"on-pale\"" : "", x + width / 2.0,
                       y + kBar / 2.0 + 4.0, action.micro_batch);
  }
  return svg;
}

}  // namespace

const std::string_view kPictureStyle = R"(
:root {
  --forward: #24568f; --backward: #b55f12; --input_gradient: #b55f12; --weight_gradient: #23704f;
  --on-bar: #ffffff; --on-pale: #1d2127;
}
@media (prefers-color-scheme: dark) {
  :root {
    --forward: #7fb0e2; --backward: #e7a25e; --input_gradient: #e7a25e; --weight_gradient: #5fc492;
    --on-bar: #15181c; --on-pale: #ffffff;
  }
}
.picture { overflow-x: auto; margin-top: 12px; }
.schedule { display: block; width: 100%; min-width: 900px; height: auto; }
.schedule text { font: 11px system-ui, sans-serif; text-anchor: middle; fill: var(--on-bar); }
.schedule text.on-pale { fill: var(--on-pale); }
.schedule text.rank { text-anchor: start; fill: currentColor; }
.schedule rect { stroke: var(--card, #ffffff); stroke-width: 1; }
.schedule .later { fill-opacity: .45; }
.schedule .lane { fill: var(--track, #efece7); stroke: none; }
.schedule .forward { fill: var(--forward); }
.schedule .backward { fill: var(--backward); }
.schedule .input_gradient { fill: var(--input_gradient); }
.schedule .weight_gradient { fill: var(--weight_gradient); }
.legend .idle { background: var(--track, #efece7); box-shadow: inset 0 0 0 1px currentColor; }
)";

std::string picture_svg(const Schedule& schedule, const Simulation& run, TimeUnit unit) {
  const double scale = run.makespan.count() == 0
                           ? 0.0
                           : (kWidth - kLabel) / static_cast<double>(run.makespan.count());
  const auto num_ranks = schedule.ranks.size();
  std::string svg = fmt::format(
      "<div class=\"picture\" tabindex=\"0\" role=\"region\" aria-label=\"Schedule\">"
      "<svg class=\"schedule\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"what {} "
      "ranks "
      "compute in {}\">\n",
      kWidth, kRow * static_cast<double>(num_ranks), num_ranks,
      unit == TimeUnit::kMilliseconds ? fmt::format("{:.4g} ms", svg_milliseconds(run.makespan))
                                      : "a step");
  bool used[std::size(kLooks)] = {}, has_numbers = false;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    const double y = kRow * static_cast<double>(rank);
    svg += fmt::format(
        "<text class=\"rank\" x=\"0\" y=\"{:.1f}\">rank {}</text><rect class=\"lane\" x=\"{:.0f}\" "
        "y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.1f}\"/>\n",
        y + kBar / 2.0 + 4.0, rank, kLabel, y, kWidth - kLabel, kBar);
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      if (!is_compute(action.kind)) continue;
      const Span& span = run.spans[rank][i];
      const auto look = static_cast<std::size_t>(action.kind);  // computing kinds come first
      used[look] = true;
      const double width = scale * static_cast<double>((span.end - span.begin).count());
      has_numbers = has_numbers || holds_number(action, width);
      svg += bar(action, span, kLabel + scale * static_cast<double>(span.begin.count()), y, width,
                 kLooks[look], schedule.layout.local_index(action.chunk) > 0,
                 time_text(span, run.makespan, unit));
      svg += '\n';
    }
  }
  svg += "</svg></div>\n<ul class=\"legend\">";
  for (std::size_t look = 0; look < std::size(kLooks); ++look) {
    if (!used[look]) continue;
    svg += fmt::format("<li><i style=\"background:var(--{})\"></i>{}</li>", kLooks[look].name,
                       kLooks[look].text);
  }
  svg += "<li><i class=\"idle\"></i>idle</li>";
  if (schedule.layout.chunks_per_rank > 1) svg += "<li>faded: a rank’s later chunks</li>";
  if (has_numbers) svg += "<li>number: micro-batch</li>";
  return svg + "</ul>\n";
}

}  // namespace sherd::schedule
