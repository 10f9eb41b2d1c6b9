// The sub-calls of a turn, each a link.

import { html, useState } from "../../vendor/preact-htm.module.js";
import { count, dollars, duration } from "../../shared/format.js";
import { link } from "../data/router.js";

const PAGE = 50;

export function CallTable({ file, calls }) {
  const [shown, setShown] = useState(PAGE);
  const failed = calls.filter((call) => call.ended?.error !== undefined).length;
  return html`<section class="panel"><header><h2>Sub-calls</h2><span class="muted">${count(calls.length)}</span>
      ${failed === 0 ? null : html`<span class="badge bad">${count(failed)} failed</span>`}</header>
    <ul class="plain rows">${calls.slice(0, shown).map((call) => {
      const row = call.ended ?? call.started ?? {};
      const path = call.child === null ? [call.run.id, "call", call.id] : [call.child.id];
      return html`<li key=${call.id}><a class="row-link call" href=${link(["run", file, ...path])}>
        <span class="mono">${call.id}</span>
        <span class=${`badge${row.kind === "rlm" ? " accent" : ""}`}>${row.kind ?? "llm"}</span>
        <span class="texts"><span class="one-line">${row.prompt ?? ""}</span>
          <span class=${`one-line ${row.error === undefined ? "muted" : "bad-text"}`}>${row.error ?? (call.ended === null ? "no answer yet" : `→ ${row.text ?? ""}`)}</span></span>
        <span class="number muted">${duration(row.seconds)}<br />${row.usd === undefined ? `${count(row.output_tokens)} tok` : dollars(row.usd)}</span>
      </a></li>`;
    })}</ul>
    ${calls.length <= shown ? null : html`<div class="body"><button type="button" class="small"
      onClick=${() => setShown(shown * 4)}>Show more (${count(calls.length - shown)})</button></div>`}
  </section>`;
}
