// Beside the cells: the episode with its costs, and the variables.

import { html, useState } from "../vendor/preact-htm.module.js";
import { bytes, count, dollars, duration, oneLine, plural, score } from "../shared/format.js";
import { useScrollStop } from "../shared/scroll_stop.js";
import { useSignal } from "../shared/use_signal.js";
import { Downloads } from "./downloads.js";

const MOST_VARIABLES = 300; // listed at once

function Fact({ name, children }) {
  return html`<div><dt>${name}</dt><dd>${children}</dd></div>`;
}

function Spent({ spent }) {
  if (spent === undefined || spent === null) return html`<${Fact} name="Sub-calls">no model is configured<//>`;
  return html`<${Fact} name="Sub-calls">${count(spent.calls)}${spent.failed_calls > 0 ? `, ${count(spent.failed_calls)} failed` : ""}<//>
    <${Fact} name="Tokens">${count(spent.input_tokens)} in, ${count(spent.output_tokens)} out<//>
    <${Fact} name="Cost">${dollars(spent.usd, spent.unpriced_calls)}<//>`;
}

export function EpisodePanel({ session, ended }) {
  const observation = useSignal(session.last);
  const task = useSignal(session.task);
  const all = useSignal(session.cells);
  // Those of the present task.
  const cells = all.slice(all.findLastIndex((each) => each.kind === "task" && each.first !== null) + 1)
    .filter((each) => each.kind === "cell" && each.observation !== null);
  const sum = (read) => cells.reduce((total, each) => total + (read(each.observation) ?? 0), 0);
  const model = session.connection.facts?.subcalls ?? null;
  return html`<section class="panel"><header><h2>Episode</h2></header>
    <div class="body">
      ${task?.prompt ? html`<p class="task">${oneLine(task.prompt, 400)}</p>` : null}
      <label class="steps" for="step-meter"><span class="muted">Steps</span> <span class="number">${count(observation.iteration)} of ${count(observation.max_iterations)}</span></label>
      <progress id="step-meter" max=${observation.max_iterations} value=${observation.iteration}></progress>
      <dl class="facts">
        <${Fact} name="Isolation">${oneLine(observation.metadata.isolation?.tier ?? "unknown", 40)}<//>
        <${Fact} name="Reward so far">${score(sum((each) => each.reward))}<//>
        <${Fact} name="Running time">${duration(sum((each) => each.result.execution_time))}<//>
        <${Fact} name="CPU">${duration(sum((each) => each.metadata.usage?.cpu_seconds))}<//>
        <${Fact} name="Peak memory">${bytes(Math.max(0, ...cells.map((each) => each.observation.metadata.usage?.peak_memory ?? 0)))}<//>
        ${model === null ? html`<${Spent} spent=${null} />` : html`<${Fact} name="Model"><code>${model.model}</code><//>
          <${Spent} spent=${observation.metadata.spent ?? { calls: 0, input_tokens: 0, output_tokens: 0, usd: 0 }} />
          <${Fact} name="Sub-calls left">${model.calls === null ? "no limit" : count(Math.max(0, model.calls - (observation.metadata.spent?.calls ?? 0)))}<//>`}
      </dl>
      ${ended ? null : html`<${Downloads} session=${session} />`}
    </div></section>`;
}

function Variable({ variable }) {
  const { name, kind, type, size, preview } = variable;
  const mark = { new: "new", modified: "changed" }[kind];
  return html`<li class=${mark ?? ""}><code class="name one-line" title=${name}>${name}</code>
    ${mark === undefined ? null : html`<span class=${`badge ${mark === "new" ? "good" : "accent"}`}>${mark}</span>`}
    <span class="muted kind">${type ?? ""}${size === undefined ? "" : ` · ${bytes(size)}`}</span>
    ${preview ? html`<span class="preview one-line mono">${oneLine(preview, 120)}</span>` : null}</li>`;
}

export function VariablesPanel({ session }) {
  const variables = [...useSignal(session.variables).values()];
  const state = useSignal(session.connection.state);
  const work = useSignal(session.work);
  const [all, setAll] = useState(false);
  const stop = useScrollStop();
  const given = new Set(work.first.available_variables);
  given.delete("context");
  const own = variables.filter((each) => !given.has(each.name) || each.type !== undefined);
  const { context_length: length, context_preview: beginning } = work.first;
  const context = [plural(length ?? 0, "character"), beginning ? ` · ${beginning}` : ""].join("");
  const rest = variables.length - own.length;
  const modules = (each) => (each.type === "module" ? 1 : 0); // which are listed last
  const listed = [...(all ? variables : own)].sort((one, other) => modules(one) - modules(other));
  return html`<section class="panel"><header><h2>Variables</h2><span class="muted number">${count(own.length)}</span></header>
    <div class="body">${state === "open" ? null : html`<p class="muted">As of the last cell; the server does not answer now.</p>`}
      ${listed.length === 0 ? html`<p class="muted">No variables yet.</p>` : null}
      <ul class="variables" aria-label="Variables" ...${stop}>${listed.slice(0, MOST_VARIABLES).map((each) => html`<${Variable} key=${each.name}
        variable=${each.name === "context" && each.type === undefined ? { ...each, preview: context } : each} />`)}</ul>
      ${listed.length > MOST_VARIABLES ? html`<p class="muted">and ${count(listed.length - MOST_VARIABLES)} more</p>` : null}
      ${rest > 0 ? html`<button type="button" class="small quiet" aria-expanded=${all} onClick=${() => setAll(!all)}>
        ${all ? "Hide" : "Show"} ${plural(rest, "name")} of the environment</button>` : null}</div></section>`;
}
