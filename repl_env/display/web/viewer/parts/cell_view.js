// A cell: its code, what it printed, its figures, and the variables that it changed.

import { html } from "../../vendor/preact-htm.module.js";
import { asText, bytes, duration, isNumber, plural, score } from "../../shared/format.js";
import { Output } from "../../shared/display_view.js";
import { FigureView } from "../../shared/figure_view.js";
import { LongText, PythonCode } from "../../shared/long_text.js";
import { Failure } from "../../shared/page_states.js";
import { useData } from "../data/use_data.js";
import { WideTable } from "./labels.js";

function list(value) {
  return Array.isArray(value) ? value : [];
}

function object(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value) ? value : {};
}

function ChangesTable({ result }) {
  const previews = object(result.locals_snapshot);
  const changes = list(result.changes).map(object);
  const rows = changes.length > 0
    ? changes
    : Object.entries(previews).map(([name, preview]) => ({ name, preview }));
  if (rows.length === 0) return null;
  return html`<details class="changes" open>
    <summary>Variables <span class="muted">${rows.length} changed</span></summary>
    <${WideTable} label="Changed variables"><thead><tr><th>name</th><th>change</th><th>type</th><th>size</th><th>value</th></tr></thead>
      <tbody>${rows.slice(0, 200).map((row) => html`<tr key=${asText(row.name)}>
        <td class="mono">${asText(row.name)}</td><td>${asText(row.kind)}</td><td class="mono">${asText(row.type)}</td>
        <td class="number">${isNumber(row.size) ? bytes(row.size) : ""}</td>
        <td class="mono preview">${asText(row.preview ?? previews[row.name]).slice(0, 500)}</td></tr>`)}</tbody><//>
  </details>`;
}

// Outputs of an event `cell_ran`.
function CellOutput({ event, number }) {
  const observation = object(event.observation);
  const result = object(observation.result);
  const metadata = object(observation.metadata);
  const failed = result.success === false;
  const quiet = ["stdout", "stderr", "exception"].every((name) => !asText(result[name]))
    && [...list(result.figures), ...list(result.displays)].length === 0;
  return html`<${Output} result=${result} />
    ${asText(result.stderr) === "" ? null : html`<${LongText} kind="output error" value=${result.stderr} />`}
    ${failed && asText(result.exception) !== "" && !asText(result.stderr).includes(asText(result.exception))
      ? html`<${LongText} kind="output error" value=${result.exception} />` : null}
    ${metadata.final_answer === null || metadata.final_answer === undefined ? null
      : html`<div class="submitted"><span class="badge good">final answer</span> <${LongText} value=${metadata.final_answer} /></div>`}
    ${quiet ? html`<p class="muted">No output.</p>` : null}
    ${result.truncated === true ? html`<p class="muted">The session cut this output.</p>` : null}
    ${list(result.figures).length === 0 ? null : html`<div class="figures">${list(result.figures).map((png, index) =>
      html`<${FigureView} key=${index} png=${png} name=${`Figure ${number}.${index + 1}`} />`)}</div>`}
    ${isNumber(result.figures_left_out) && result.figures_left_out > 0
      ? html`<p class="muted">${plural(result.figures_left_out, "figure")} left out to keep this page small.</p>` : null}
    ${isNumber(result.displays_left_out) && result.displays_left_out > 0
      ? html`<p class="muted">${plural(result.displays_left_out, "display")} left out to keep this page small.</p>` : null}
    <${ChangesTable} result=${result} />`;
}

export function CellView({ store, cell }) {
  const row = cell.ran ?? cell.started;
  const { value, error } = useData(() => store.event(row), [row.at, row.index]);
  if (error !== null) return html`<${Failure} error=${error} />`;
  return html`<article class="cell" aria-label=${`Cell ${cell.number}`}>
    <h3>Cell ${cell.number}
      ${row.ok === false ? html`<span class="badge bad">${row.error_kind ?? "error"}</span>` : null}
      ${isNumber(row.reward) && row.reward !== 0 ? html`<span class="badge">reward ${score(row.reward)}</span>` : null}
      <span class="muted number">${cell.ran === null ? "running, or cut off" : duration(row.seconds)}</span></h3>
    ${value === null ? html`<p class="muted">Loading…</p>` : html`<${PythonCode} value=${asText(value.code)} />
      ${cell.ran === null ? null : html`<${CellOutput} event=${value} number=${cell.number} />`}`}
  </article>`;
}
