#include "engine/report/page.h"

#include <fmt/format.h>

namespace sherd::engine {
namespace {

constexpr std::string_view kStyle = R"(
:root {
  color-scheme: light dark;
  --paper: #fbfaf8; --card: #ffffff; --ink: #1d2127; --soft: #5c6470; --line: #dedbd5;
  --track: #efece7; --good: #1f7a4d; --bad: #b3352b; --shade: #00000040;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15181c; --card: #1d2126; --ink: #e9e7e3; --soft: #a2a9b3; --line: #353b43;
    --track: #2a2f36; --good: #5fc492; --bad: #f0857b; --shade: #000000b0;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 1060px; margin: 0 auto; padding: 32px 20px 56px; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.06rem; margin: 0 0 2px; }
p { margin: 0; }
.soft { color: var(--soft); }
.small { font-size: .88rem; }
section {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 20px; margin-top: 18px;
}
.good { color: var(--good); } .bad { color: var(--bad); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 14px 0 0; padding: 0;
  list-style: none; font-size: .86rem; color: var(--soft); }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px;
  margin-right: 6px; vertical-align: -1px; }
/* The shade at an edge stands still; the cover over it scrolls away with the table's end. */
.scroll { overflow-x: auto; margin-top: 12px;
  background:
    linear-gradient(to left, var(--card) 40%, transparent) right / 40px 100% no-repeat local,
    linear-gradient(to left, var(--shade), transparent) right / 16px 100% no-repeat scroll;
}
.scroll:focus-visible { outline: 2px solid var(--soft); outline-offset: 2px; }
.hint { display: none; text-align: right; margin-top: 8px; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: .88rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); }
th:first-child, td:first-child { text-align: left; padding-left: 0; position: sticky; left: 0;
  background: var(--card); }
td.text, th.text { text-align: left; }
tr.sum td { font-weight: 600; }
tr:last-child td { border-bottom: 0; }
td i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 8px; }
code { font: .86rem/1.5 ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; }
@media (max-width: 640px) {
  main { padding: 20px 12px 40px; }
  section { padding: 16px 14px; }
  .hint { display: block; }
  .hint + .scroll { margin-top: 2px; }
}
)";

}  // namespace

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string scrolling(std::string_view label, std::string_view table) {
  return fmt::format(
      "<p class=\"hint small soft\" aria-hidden=\"true\">more columns to the right →</p>\n"
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">{}</div>\n",
      label, table);
}

std::string page(const Page& page) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{}</title>\n<style>{}{}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n"
      "</html>\n",
      escaped(page.title), kStyle, page.style, page.body);
}

}  // namespace sherd::engine
