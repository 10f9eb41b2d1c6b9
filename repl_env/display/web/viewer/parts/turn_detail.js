// A turn: what the model was shown, what it answered, what its code did.

import { html } from "../../vendor/preact-htm.module.js";
import { asText, count, dollars, duration, isNumber } from "../../shared/format.js";
import { Failure } from "../../shared/page_states.js";
import { link } from "../data/router.js";
import { callsOf } from "../data/run_tree.js";
import { useData } from "../data/use_data.js";
import { CallTable } from "./call_table.js";
import { CellView } from "./cell_view.js";
import { Fact } from "./labels.js";
import { MessageList } from "./message_list.js";
import { ReplyText } from "./reply_text.js";

function tokenFacts(tokens) {
  const probabilities = Array.isArray(tokens?.logprobs) ? tokens.logprobs.filter(isNumber) : [];
  if (probabilities.length === 0) return null;
  const mean = probabilities.reduce((sum, each) => sum + each, 0) / probabilities.length;
  return html`<${Fact} name="recorded">${count(probabilities.length)} sampled tokens, mean log-probability ${mean.toFixed(3)}<//>`;
}

function Neighbours({ file, turn }) {
  const at = (place) => turn.run.turns[turn.place + place];
  const button = (other, text) => (other === undefined
    ? html`<span class="button off" aria-disabled="true">${text}</span>`
    : html`<a class="button" href=${link(["run", file, turn.run.id, "turn", String(other.number)])}>${text}</a>`);
  return html`<nav class="neighbours" aria-label="Turns">${button(at(-1), "← Earlier")}${button(at(1), "Later →")}</nav>`;
}

export function TurnDetail({ store, turn }) {
  const { row, run } = turn;
  const { value, error } = useData(() => (row === null ? null : store.event(row)), [row?.at, row?.index, turn]);
  const completion = value?.completion ?? {};
  const calls = callsOf(turn);
  return html`<div class="detail">
    <div class="title"><h1><a href=${link(["run", store.file, run.id])}>Run ${run.id}</a> › Turn ${turn.number}
      ${row?.last ? html` <span class="badge">answer only</span>` : null}
      ${row?.truncated ? html` <span class="badge warn">reply cut</span>` : null}</h1>
      <${Neighbours} file=${store.file} turn=${turn} /></div>
    ${row === null ? html`<p class="muted">No reply of a model is recorded.</p>` : html`<dl class="facts">
      ${row.model === undefined ? null : html`<${Fact} name="model">${row.model}<//>`}
      <${Fact} name="tokens">${count(row.input_tokens)} in, ${count(row.output_tokens)} out<//>
      ${row.usd === undefined ? null : html`<${Fact} name="cost">${dollars(row.usd)}<//>`}
      <${Fact} name="time">${duration(row.seconds)}<//>
      ${completion.finish_reason ? html`<${Fact} name="finish">${asText(completion.finish_reason)}<//>` : null}
      ${tokenFacts(completion.tokens)}
    </dl>
    <section class="panel injected"><header><h2>Shown to the model</h2></header>
      <div class="body"><${MessageList} key=${row.index} store=${store} turn=${turn} /></div></section>
    <section class="panel sampled"><header><h2>Reply</h2><span class="badge sampled">sampled</span></header>
      <div class="body">${error !== null ? html`<${Failure} error=${error} />`
        : value === null ? html`<p class="muted">Loading…</p>`
        : html`<${ReplyText} value=${completion.text} />`}</div></section>`}
    ${turn.cells.length === 0 ? null : html`<section class="panel"><header><h2>Code that ran</h2></header>
      <div class="body cells">${turn.cells.map((cell) => html`<${CellView} key=${`${run.id} ${cell.number}`} store=${store} cell=${cell} />`)}</div></section>`}
    ${calls.length === 0 ? null : html`<${CallTable} file=${store.file} calls=${calls} />`}
  </div>`;
}
