#include "engine/plan/page_style.h"

namespace sherd::engine {

// Permanent state is dark; its transient counterpart is a lighter form of the same colour.
const std::string_view kPlanPageStyle = R"(
:root {
  --parameters: #24568f; --master: #5583b8; --gathered_parameters: #a3c2e3;
  --gradients: #23704f; --unreduced_gradients: #94cdb0; --optimizer: #6b4c96;
  --activations: #d67f2c; --logits: #e9c54f; --communication: #b4486c;
  --workspace: #8b9099; --data: #c4a587; --checkpoint: #4c535d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --parameters: #4a8ad0; --master: #7fb0e2; --gathered_parameters: #bcd8f3;
    --gradients: #36996f; --unreduced_gradients: #a5dcc2; --optimizer: #9b7fcb;
    --activations: #dd8a3c; --logits: #e7c862; --communication: #d46a8f;
    --workspace: #9ba1aa; --data: #cfb497; --checkpoint: #6c7684;
  }
}
.verdict { font-size: 1.12rem; font-weight: 600; }
.meter {
  position: relative; height: 12px; background: var(--track); border-radius: 6px;
  margin: 12px 0 6px; overflow: hidden;
}
.meter i { position: absolute; inset: 0 auto 0 0; background: var(--good); }
.meter.over i { background: var(--bad); }
.meter b { position: absolute; top: 0; bottom: 0; width: 2px; background: var(--ink);
  box-shadow: 0 0 0 1px var(--card); }
.origin { display: inline-block; }
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
.answers { list-style: none; padding: 0; margin: 10px 0 0; }
.answers li { padding: 8px 0; border-top: 1px solid var(--line); }
.answers li:first-child { border-top: 0; }
@media (max-width: 640px) {
  .stage { grid-template-columns: 1fr auto; gap: 2px 12px; }
  .stage .bar { grid-column: 1 / -1; grid-row: 2; }
  .timeline { gap: 0 2px; }
  .column { height: 200px; }
  .phase { font-size: .66rem; }
}
)";

}  // namespace sherd::engine
