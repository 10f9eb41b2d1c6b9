// A run: what it was asked, how it ended, what it cost, its time, and the runs below it.

import { html } from "../../vendor/preact-htm.module.js";
import { asText, count, isNumber, moment, score } from "../../shared/format.js";
import { LongText } from "../../shared/long_text.js";
import { link } from "../data/router.js";
import { runFacts } from "../data/run_tree.js";
import { useData } from "../data/use_data.js";
import { Fact, Score, SpentFacts, StopBadge } from "./labels.js";
import { Timeline } from "./timeline.js";

const MAX_BELOW = 100; // runs below that the page lists

function Facts({ run, facts, event }) {
  const task = event?.task ?? {};
  return html`<dl class="facts">
    ${isNumber(facts.reward) ? html`<${Fact} name="reward"><${Score} value=${facts.reward} />
      ${isNumber(run.ended?.task_reward) && run.ended.task_reward !== facts.reward
        ? html` <span class="muted">task ${score(run.ended.task_reward)}</span>` : null}<//>` : null}
    ${facts.model ? html`<${Fact} name="model">${facts.model}<//>` : null}
    <${Fact} name="turns">${count(facts.turns)}${isNumber(facts.limit) ? ` of ${count(facts.limit)}` : ""}<//>
    <${SpentFacts} spent=${facts.total} seconds=${facts.seconds} />
    ${run.started?.time === undefined ? null : html`<${Fact} name="began">${moment(run.started.time)}<//>`}
    ${["name", "group_id", "split", "difficulty"].map((name) => (task[name]
      ? html`<${Fact} key=${name} name=${name === "name" ? "task" : name.replace("_id", "")}>${asText(task[name])}<//>` : null))}
  </dl>`;
}

function Below({ file, run }) {
  const shown = run.children.slice(0, MAX_BELOW);
  const first = shown.slice(0, 4).map((child) => `${file}:${child.id}`).join(",");
  return html`<section class="panel">
    <header><h2>Runs below</h2><span class="muted">${count(run.children.length)}</span><span class="grow"></span>
      ${shown.length > 1 ? html`<a class="button" href=${link(["side"], { runs: first })}>Side by side</a>` : null}</header>
    <ul class="plain rows">${shown.map((child) => {
      const facts = runFacts(child);
      return html`<li key=${child.id}><a class="row-link" href=${link(["run", file, child.id])}>
        <span class="mono">${child.id}</span><span class="one-line grow">${facts.question}</span>
        <${StopBadge} stop=${facts.stop} error=${facts.error} /><${Score} value=${facts.reward} /></a></li>`;
    })}</ul>
  </section>`;
}

export function RunDetail({ store, state, run }) {
  const facts = runFacts(run);
  const { value } = useData(async () => ({
    started: run.started && await store.event(run.started),
    ended: run.ended && await store.event(run.ended),
    header: run.parent === null && state.tree.header ? await store.event(state.tree.header) : null,
  }), [run, run.started?.at, run.ended?.at, run.ended?.index], true);
  const started = value?.started ?? {};
  const ended = value?.ended ?? {};
  const contexts = Array.isArray(started.contexts) ? started.contexts : [];
  const settings = asText(value?.header?.settings ?? "");
  return html`<div class="detail">
    <h1>Run ${run.id} <${StopBadge} stop=${facts.stop} error="" /> <${StopBadge} error=${facts.error} /></h1>
    <${Facts} run=${run} facts=${facts} event=${started} />
    <section class="panel"><header><h2>Question</h2></header>
      <div class="body"><${LongText} kind="text-block prose" value=${started.question ?? facts.question} />
      ${contexts.length === 0 ? null : html`<p class="contexts">${contexts.map((each) => html`<span class="badge" key=${asText(each?.name)}>
        ${asText(each?.name)}: ${asText(each?.type)}, ${count(each?.length)}</span> `)}</p>`}</div></section>
    ${run.ended === null ? null : html`<section class="panel"><header><h2>Final answer</h2></header>
      <div class="body">${ended.final_answer === null || (value !== null && ended.final_answer === undefined)
        ? html`<p class="muted">The run gave no answer.</p>`
        : html`<${LongText} kind="text-block prose" value=${ended.final_answer ?? run.ended.text} />`}</div></section>`}
    <section class="panel"><header><h2>Timeline</h2></header>
      <div class="body"><${Timeline} file=${store.file} state=${state} run=${run} /></div></section>
    ${run.children.length === 0 ? null : html`<${Below} file=${store.file} run=${run} />`}
    ${settings === "" || settings === "{}" ? null : html`<details class="panel more"><summary>Settings of the run</summary>
      <div class="body"><${LongText} value=${settings} kind="code-block" /></div></details>`}
  </div>`;
}
