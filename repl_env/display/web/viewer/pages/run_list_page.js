// All runs and evaluations of the files that were named, with filters.

import { html, useMemo, useState } from "../../vendor/preact-htm.module.js";
import { count, dollars, duration, isNumber, oneLine, plural, score } from "../../shared/format.js";
import { Empty, Failure, Loading } from "../../shared/page_states.js";
import { VirtualList } from "../../shared/virtual_list.js";
import { groupsOf, mean, runsOf } from "../data/groups.js";
import { link, replaceRoute } from "../data/router.js";
import { useListing } from "../data/use_data.js";
import { EvaluationList } from "../parts/evaluation_list.js";
import { Histogram, testOfBin } from "../parts/histogram.js";
import { Score, StopBadge } from "../parts/labels.js";
import { ListTabs } from "../parts/list_tabs.js";

const ROW = 60;
const MAX_SIDE = 6; // runs side by side

const SORTS = {
  "": null,
  score: (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity),
  cost: (a, b) => (b.usd ?? -1) - (a.usd ?? -1),
  time: (a, b) => (b.seconds ?? -1) - (a.seconds ?? -1),
  newest: (a, b) => (b.time ?? 0) - (a.time ?? 0),
};

function searchText(run) {
  return [run.name, run.question, run.task, run.group, run.model, run.answer].filter(Boolean).join("\n").toLowerCase();
}

function matching(runs, query) {
  const words = (query.get("find") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const isInBin = testOfBin(query.get("score"), runs.map((run) => run.reward));
  const shown = runs.filter((run) => (
    (!query.get("end") || run.stop === query.get("end") || run.error === query.get("end"))
    && isInBin(run.reward)
    && (words.length === 0 || words.every((word) => searchText(run).includes(word)))
  ));
  const sort = SORTS[query.get("sort") ?? ""] ?? null;
  return sort === null ? shown : [...shown].sort(sort);
}

function Filters({ runs, query, set }) {
  const counted = (name) => {
    const found = new Map();
    for (const run of runs) for (const value of [].concat(name(run))) if (value) found.set(value, (found.get(value) ?? 0) + 1);
    return [...found].sort((a, b) => b[1] - a[1]);
  };
  const choice = (name, label, values) => (values.length === 0 ? null : html`<label><span class="visually-hidden">${label}</span>
    <select value=${query.get(name) ?? ""} onChange=${(event) => set(name, event.currentTarget.value)}>
      <option value="">${label}</option>
      ${values.map(([value, number]) => html`<option key=${value} value=${value}>${oneLine(value, 40)} (${number})</option>`)}
    </select></label>`);
  return html`<div class="filters">
    <label class="grow"><span class="visually-hidden">Search</span>
      <input type="search" placeholder="Search question, task, model, answer" value=${query.get("find") ?? ""}
        onInput=${(event) => set("find", event.currentTarget.value)} /></label>
    ${choice("end", "Any ending", counted((run) => [run.stop, run.error]))}
    ${choice("group", "Any group", counted((run) => run.group))}
    <label><span class="visually-hidden">Order</span>
      <select value=${query.get("sort") ?? ""} onChange=${(event) => set("sort", event.currentTarget.value)}>
        <option value="">As named</option><option value="newest">Newest first</option><option value="score">Best score first</option>
        <option value="cost">Dearest first</option><option value="time">Slowest first</option></select></label>
  </div>`;
}

// Samples of one task differ by file and answer, other runs by question.
function secondLine(run) {
  if (!run.task) return run.question ?? "";
  return run.answer ? `${run.name} → ${run.answer}` : run.name;
}

function RunRow({ run, index, picked, pick }) {
  return html`<div role="listitem" class="run-row" aria-posinset=${index + 1}>
    <input type="checkbox" aria-label=${`Choose ${run.name} for a view side by side`} checked=${picked} onChange=${pick} />
    <a class="run-link" href=${link(["run", run.file, ...(run.several ? [run.run] : [])])}>
      <span class="texts"><b class="one-line">${run.task || run.name}${run.several ? ` · run ${run.run}` : ""}</b>
        <span class="one-line muted">${secondLine(run)}</span></span>
      <span class="ends"><${StopBadge} stop=${run.stop} error=${run.error} /></span>
      <span class="cell-score"><${Score} value=${run.reward} /></span>
      <span class="number muted wide">${run.iterations === undefined || run.iterations === null ? "" : plural(run.iterations, "turn")}</span>
      <span class="number muted wide">${run.total?.input_tokens === 0 && run.usd === 0 ? "" : dollars(run.usd, run.total?.unpriced_calls)}</span>
      <span class="number muted wide">${duration(run.seconds)}</span>
    </a></div>`;
}

function RunTable({ runs, all, scores, query, set }) {
  const [picked, setPicked] = useState(new Set());
  const toggle = (key) => {
    const next = new Set(picked);
    if (!next.delete(key)) next.add(key);
    setPicked(next);
  };
  const group = query.get("group");
  const side = picked.size > 1 ? { runs: [...picked].slice(0, MAX_SIDE).join(",") } : group ? { group, score: query.get("score") } : null;
  const average = mean(runs.map((run) => run.reward));
  return html`<section class="panel runs">
    <header><h2>Runs</h2><span class="muted" role="status">${runs.length === all.length ? count(all.length) : `${count(runs.length)} of ${count(all.length)}`}</span>
      ${average === null ? null : html`<span class="muted">mean score <b class="number">${score(average)}</b></span>`}
      <span class="grow"></span>
      ${side === null ? html`<span class="muted hint">Choose runs to see them side by side</span>`
        : html`<a class="button" href=${link(["side"], side)}>Side by side (${picked.size > 1 ? Math.min(picked.size, MAX_SIDE) : runs.length})</a>`}
    </header>
    <div class="toolbar"><${Filters} runs=${all} query=${query} set=${set} />
      ${scores.length < 2 ? null : html`<${Histogram} values=${scores}
        chosen=${query.get("score")} addressOf=${(bin) => link([], { ...Object.fromEntries(query), score: bin })} />`}</div>
    ${runs.length === 0
      ? html`<${Empty} title="No run matches"><button type="button" onClick=${() => set(null)}>Clear the filters</button><//>`
      : html`<${VirtualList} count=${runs.length} height=${ROW} attributes=${{ role: "list", "aria-label": "Runs" }} render=${(index) => {
        const run = runs[index];
        return html`<${RunRow} key=${run.key} run=${run} index=${index} picked=${picked.has(run.key)} pick=${() => toggle(run.key)} />`;
      }} />`}
  </section>`;
}

export function RunListPage({ source, query }) {
  const { value, error } = useListing(source);
  const runs = useMemo(() => (value === null ? [] : runsOf(value)), [value]);
  const groups = useMemo(() => groupsOf(runs), [runs]);
  if (value === null) return error === null ? html`<${Loading} what="Reading the files" />` : html`<${Failure} title="The list cannot be read" error=${error} />`;
  const set = (name, chosen) => {
    const next = name === null ? {} : { ...Object.fromEntries(query), [name]: chosen };
    replaceRoute(link([], next));
  };
  const group = query.get("group");
  const candidates = group ? runs.filter((run) => run.group === group) : runs;
  const shown = matching(candidates, query);
  const evaluations = value.files.filter((file) => file.kind === "results");
  const broken = value.files.filter((file) => file.kind === "broken");
  const scores = candidates.map((run) => run.reward).filter(isNumber);
  if (value.files.length === 0) {
    return html`<${Empty} title="Nothing to show yet"><p>The folder has no trajectories and no results of evaluations.</p><//>`;
  }
  return html`<div class="run-list">
    ${error === null ? null : html`<p class="note bad-text" role="alert">${error.message}</p>`}
    ${value.full ? html`<p class="note">Only the first ${count(value.files.length)} files are listed.</p>` : null}
    ${broken.map((file) => html`<p class="note bad-text" key=${file.id}>${file.name}: ${file.error}</p>`)}
    <${ListTabs} runs=${runs} groups=${groups} chosen="runs" />
    ${evaluations.length === 0 ? null : html`<${EvaluationList} files=${evaluations} />`}
    ${runs.length === 0 ? null : html`<${RunTable} runs=${shown} all=${runs} scores=${scores} query=${query} set=${set} />`}
  </div>`;
}
