// A sub-call: the question of the code, and the answer that it got.

import { html } from "../../vendor/preact-htm.module.js";
import { asText, count, dollars, duration } from "../../shared/format.js";
import { LongText } from "../../shared/long_text.js";
import { Failure } from "../../shared/page_states.js";
import { link } from "../data/router.js";
import { useData } from "../data/use_data.js";
import { Fact } from "./labels.js";

export function CallDetail({ store, call }) {
  const row = call.ended ?? call.started;
  const { value, error } = useData(() => store.event(row), [row.at, row.index]);
  const turn = call.run.turns.find((each) => each.cells.some((cell) => cell.calls.includes(call)));
  const ended = call.ended !== null;
  const sampled = ended && call.ended.error === undefined && !call.ended.child;
  return html`<div class="detail">
    <h1><a href=${link(["run", store.file, call.run.id])}>Run ${call.run.id}</a>
      ${turn === undefined ? null : html` › <a href=${link(["run", store.file, call.run.id, "turn", String(turn.number)])}>Turn ${turn.number}</a>`}
      ${" "}› Call ${call.id} <span class="badge">${row.kind ?? "llm"}</span></h1>
    <dl class="facts">
      ${row.model === undefined ? null : html`<${Fact} name="model">${row.model}<//>`}
      <${Fact} name="tokens">${count(row.input_tokens)} in, ${count(row.output_tokens)} out<//>
      ${row.usd === undefined ? null : html`<${Fact} name="cost">${dollars(row.usd)}<//>`}
      <${Fact} name="time">${duration(row.seconds)}<//>
      ${call.child === null ? null : html`<${Fact} name="answered by"><a href=${link(["run", store.file, call.child.id])}>run ${call.child.id}</a><//>`}
    </dl>
    ${error !== null ? html`<${Failure} error=${error} />` : html`
    <section class="panel injected"><header><h2>Prompt of the code</h2></header>
      <div class="body"><${LongText} value=${asText(value?.prompt ?? row.prompt)} />
        <p class="muted">The context that the code passed along is not recorded.</p></div></section>
    <section class=${`panel ${sampled ? "sampled" : "injected"}`}><header><h2>${row.error === undefined ? "Answer" : "Failure"}</h2>
        <span class=${`badge ${sampled ? "sampled" : ""}`}>${sampled ? "sampled" : "injected"}</span>
        ${value?.truncated === true ? html`<span class="badge warn">cut</span>` : null}</header>
      <div class="body">${ended
        ? html`<${LongText} kind=${row.error === undefined ? "text-block" : "output error"} value=${asText(value?.text ?? row.text)} />`
        : html`<p class="muted">No answer yet, or none was recorded.</p>`}</div></section>`}
  </div>`;
}
