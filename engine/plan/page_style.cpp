#include "engine/plan/page_style.h"

namespace sherd::engine {

// State that stays is dark, its transient companion a light form of the same colour.
const std::string_view kPlanPageStyle = R"(
:root {
  color-scheme: light dark;
  --paper: #fbfaf8; --card: #ffffff; --ink: #1d2127; --soft: #5c6470; --line: #dedbd5;
  --track: #efece7; --good: #1f7a4d; --bad: #b3352b; --shade: #00000040;
  --parameters: #24568f; --master: #5583b8; --gathered_parameters: #a3c2e3;
  --gradients: #23704f; --unreduced_gradients: #94cdb0; --optimizer: #6b4c96;
  --activations: #d67f2c; --logits: #e9c54f; --communication: #b4486c;
  --workspace: #8b9099; --data: #c4a587; --checkpoint: #4c535d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15181c; --card: #1d2126; --ink: #e9e7e3; --soft: #a2a9b3; --line: #353b43;
    --track: #2a2f36; --good: #5fc492; --bad: #f0857b; --shade: #000000b0;
    --parameters: #4a8ad0; --master: #7fb0e2; --gathered_parameters: #bcd8f3;
    --gradients: #36996f; --unreduced_gradients: #a5dcc2; --optimizer: #9b7fcb;
    --activations: #dd8a3c; --logits: #e7c862; --communication: #d46a8f;
    --workspace: #9ba1aa; --data: #cfb497; --checkpoint: #6c7684;
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
.verdict { font-size: 1.12rem; font-weight: 600; }
.meter {
  position: relative; height: 12px; background: var(--track); border-radius: 6px;
  margin: 12px 0 6px; overflow: hidden;
}
.meter i { position: absolute; inset: 0 auto 0 0; background: var(--good); }
.meter.over i { background: var(--bad); }
.meter b { position: absolute; top: 0; bottom: 0; width: 2px; background: var(--ink); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 14px 0 0; padding: 0;
  list-style: none; font-size: .86rem; color: var(--soft); }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px;
  margin-right: 6px; vertical-align: -1px; }
.stage { display: grid; grid-template-columns: 5.2rem 1fr 9.6rem; gap: 12px; align-items: center;
  margin-top: 12px; }
.stage strong { font-weight: 600; }
.stage .figures { text-align: right; font-variant-numeric: tabular-nums; }
.bar { position: relative; height: 30px; background: var(--track); border-radius: 5px; }
.bar .fill { display: flex; height: 100%; border-radius: 5px; overflow: hidden; }
.bar .fill i { height: 100%; box-shadow: inset -1px 0 var(--card); }
.bar .fill i:last-child { box-shadow: none; }
.bar .limit { position: absolute; top: -4px; bottom: -4px; width: 0;
  border-left: 2px dashed var(--ink); }
.mine { text-decoration: underline; text-decoration-thickness: 2px; text-underline-offset: 4px; }
.timeline { display: grid; grid-template-columns: repeat(6, 1fr); gap: 0 4px; margin-top: 18px;
  position: relative; }
.column { display: flex; flex-direction: column; justify-content: flex-end; height: 260px;
  background: var(--track); }
.column i { display: block; width: 100%; box-shadow: inset 0 1px var(--card); }
.column.apart { opacity: .75; }
.phase { text-align: center; font-size: .88rem; padding-top: 6px; line-height: 1.3;
  font-variant-numeric: tabular-nums; }
.brace { text-align: center; font-size: .82rem; color: var(--soft);
  border-top: 2px solid var(--line); margin-top: 8px; padding-top: 4px; }
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
.answers { list-style: none; padding: 0; margin: 10px 0 0; }
.answers li { padding: 8px 0; border-top: 1px solid var(--line); }
.answers li:first-child { border-top: 0; }
@media (max-width: 640px) {
  main { padding: 20px 12px 40px; }
  section { padding: 16px 14px; }
  .stage { grid-template-columns: 1fr auto; gap: 2px 12px; }
  .stage .bar { grid-column: 1 / -1; grid-row: 2; }
  .timeline { gap: 0 2px; }
  .column { height: 200px; }
  .phase { font-size: .62rem; }
  .hint { display: block; }
  .hint + .scroll { margin-top: 2px; }
}
)";

}  // namespace sherd::engine
