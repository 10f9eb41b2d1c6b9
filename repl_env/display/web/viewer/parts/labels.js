// Small parts that several pages share: how a run ended, what it scored, what it cost, a wide table.

import { html } from "../../vendor/preact-htm.module.js";
import { count, dollars, duration, isNumber, score } from "../../shared/format.js";
import { useScrollStop } from "../../shared/scroll_stop.js";

const INFRASTRUCTURE = new Set(["llm", "sandbox", "cancelled"]);

export function StopBadge({ stop, error }) {
  if (error) {
    const ours = INFRASTRUCTURE.has(error);
    return html`<span class=${`badge ${ours ? "warn" : "bad"}`}
      title=${ours ? "infrastructure error, no fault of the model" : "kind of error"}>${error}</span>`;
  }
  if (!stop) return null;
  const kind = stop === "running" ? "accent" : stop === "answer" ? "good" : "warn";
  return html`<span class=${`badge ${kind}`} title="why the run ended">${stop}</span>`;
}

export function Score({ value }) {
  if (!isNumber(value)) return html`<span class="number muted">–</span>`;
  const kind = value >= 0.999 ? "good-text" : value <= 0 ? "bad-text" : "";
  return html`<span class=${`number score ${kind}`}>${score(value)}</span>`;
}

export function Fact({ name, children }) {
  return html`<div><dt>${name}</dt><dd>${children}</dd></div>`;
}

export function SpentFacts({ spent, seconds }) {
  if (spent === null || spent === undefined) return null;
  const known = spent.input_tokens + spent.output_tokens > 0 || spent.usd > 0; // a trainer's rollouts tell neither
  return html`<${Fact} name="calls">${count(spent.calls)}${spent.failed_calls > 0
      ? html` <span class="bad-text">(${count(spent.failed_calls)} failed)</span>` : null}<//>
    ${known ? html`<${Fact} name="tokens">${count(spent.input_tokens)} in, ${count(spent.output_tokens)} out<//>
      <${Fact} name="cost">${dollars(spent.usd, spent.unpriced_calls)}<//>` : null}
    ${seconds === undefined ? null : html`<${Fact} name="time">${duration(seconds)}<//>`}`;
}

// A table that scrolls sideways where the page is narrower.
export function WideTable({ label, kind = "", children }) {
  const stop = useScrollStop();
  return html`<div class="scroll" role="group" aria-label=${label} ...${stop}><table class=${kind}>${children}</table></div>`;
}
