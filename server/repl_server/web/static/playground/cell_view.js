// One cell: its code, its output while it runs and after, figures, and the variables that it changed.
// Everything from the session is text; figures become pictures from blobs.

import { html } from "../vendor/preact-htm.module.js";
import { Output } from "../shared/display_view.js";
import { FigureView } from "../shared/figure_view.js";
import { bytes, duration, oneLine, score } from "../shared/format.js";
import { LongText, PythonCode } from "../shared/long_text.js";
import { useSignal } from "../shared/use_signal.js";

const MARKS = { new: "+", modified: "~", deleted: "−" };
const MOST_CHANGES = 12;

function Live({ cell }) {
  const pieces = useSignal(cell.live);
  return html`<div aria-live="polite">${pieces.map(({ stream, text }, index) =>
    html`<${LongText} key=${index} value=${text} kind=${stream === "stderr" ? "output error" : "output"} growing />`)}</div>`;
}

function Changes({ changes }) {
  if (changes.length === 0) return null;
  return html`<ul class="changes" aria-label="Changed variables">${changes.slice(0, MOST_CHANGES).map((each) =>
    html`<li class=${MARKS[each.kind] === undefined ? "" : each.kind}><span aria-hidden="true">${MARKS[each.kind] ?? "·"}</span>
      <span class="visually-hidden">${each.kind}</span> <code>${oneLine(each.name, 60)}</code>
      ${each.kind === "deleted" ? null : html`<span class="muted one-line">${oneLine(each.preview || each.type, 60)}</span>`}</li>`)}
    ${changes.length > MOST_CHANGES ? html`<li class="muted">and ${changes.length - MOST_CHANGES} more</li>` : null}</ul>`;
}

function Result({ observation }) {
  const { result } = observation;
  return html`<div class="result">
    <${Output} result=${result} />
    ${result.stderr === "" ? null : html`<${LongText} value=${result.stderr} kind=${result.success ? "output" : "output error"} />`}
    ${(result.figures ?? []).map((png, index) => html`<${FigureView} key=${index} png=${png} name=${`figure-${index + 1}`} />`)}
    <${Changes} changes=${result.changes ?? []} />
    ${result.truncated ? html`<p class="muted">The output was shortened.</p>` : null}
  </div>`;
}

function errorName(kind) {
  return kind === null || kind === undefined || kind === "exception" ? "error" : oneLine(kind, 40);
}

const UNFINISHED = { "queued": "accent", "running": "accent", "no result": "bad", "skipped": "warn" };
const NAMES = { skipped: "not run" };

function Facts({ cell, connected }) {
  if (cell.status === "running" && !connected) return html`<span class="badge warn">no connection</span>`;
  if (cell.observation === null) return html`<span class=${`badge ${UNFINISHED[cell.status]}`}>${NAMES[cell.status] ?? cell.status}</span>`;
  const { result, metadata, reward } = cell.observation;
  return html`${cell.undone ? html`<span class="badge">undone</span>` : null}
    ${result.success ? null : html`<span class="badge bad">${errorName(metadata.error_kind)}</span>`}
    ${reward ? html`<span class=${`badge ${reward > 0 ? "good" : "bad"}`}>reward ${score(reward)}</span>` : null}
    <span class="muted number" title=${`peak memory ${bytes(metadata.usage?.peak_memory)}`}>${duration(result.execution_time)}</span>`;
}

// `onTakeBack`: removes the cell from the queue. `connected`: the server answers.
export function CellView({ cell, number, connected, onReuse, onTakeBack }) {
  return html`<article class=${cell.undone ? "panel cell undone" : "panel cell"} aria-label=${`Cell ${number}`}>
    <header><span class="muted number">[${number}]</span><span class="facts-line"><${Facts} cell=${cell} connected=${connected} /></span>
      ${cell.status === "queued" ? html`<button type="button" class="quiet small" title="Do not run this cell" onClick=${onTakeBack}>Take back</button>` : null}
      <button type="button" class="quiet small" title="Put this code into the editor" onClick=${() => onReuse(cell.code)}>Edit</button></header>
    <div class="body">
      <${PythonCode} value=${cell.code} />
      ${cell.observation === null ? html`<${Live} cell=${cell} />` : html`<${Result} observation=${cell.observation} />`}
      ${cell.error === null ? null : html`<p class=${cell.status === "skipped" ? "muted" : "bad"}>${cell.error.message}</p>`}
    </div>
  </article>`;
}

export function TaskView({ task }) {
  return html`<p class="new-task"><span class="badge accent">new task</span> ${task.prompt === "" ? html`<span class="muted">without a question</span>` : oneLine(task.prompt, 400)}</p>`;
}
