// An evaluation: means with intervals, the spread of scores, each task.

import { html } from "../../vendor/preact-htm.module.js";
import { asText, count, dollars, duration, isNumber, oneLine, plural, score } from "../../shared/format.js";
import { LongText } from "../../shared/long_text.js";
import { Empty, Failure, Loading } from "../../shared/page_states.js";
import { VirtualList } from "../../shared/virtual_list.js";
import { link, replaceRoute } from "../data/router.js";
import { useData, useListing } from "../data/use_data.js";
import { Histogram, testOfBin } from "../parts/histogram.js";
import { IntervalBar } from "../parts/interval_bar.js";
import { Fact, Score, SpentFacts, StopBadge, WideTable } from "../parts/labels.js";

const ROW = 60;

// The address of a task's trajectory: of the file that the result names, else of the only run among the
// files that names the task. Two evaluations of the same tasks have two such runs.
function trajectoryOf(task, listing) {
  if (typeof task.run === "string") return link(["run", task.run]);
  const found = (listing?.files ?? []).flatMap((file) => (file.roots ?? [])
    .filter((root) => root.task === task.id).map((root) => link(["run", file.id, root.run])));
  return found.length === 1 ? found[0] : undefined;
}

function sumOf(tasks) {
  const names = ["calls", "failed_calls", "input_tokens", "output_tokens", "usd", "unpriced_calls"];
  return Object.fromEntries(names.map((name) => [name, tasks.reduce((sum, task) => sum + (task.spent?.[name] ?? 0), 0)]));
}

function Scores({ scores }) {
  return html`<${WideTable} label="Scores" kind="scores"><thead><tr><th>tasks</th><th>n</th><th>mean</th><th>95 % interval</th><td></td></tr></thead>
    <tbody>${scores.map((each) => html`<tr key=${each.name}><td>${each.name}</td><td class="number">${count(each.n)}</td>
      <td class="number"><b>${score(each.mean)}</b></td><td class="number">${score(each.low)} to ${score(each.high)}</td>
      <td><${IntervalBar} value=${each.mean} low=${each.low} high=${each.high} /></td></tr>`)}</tbody><//>`;
}

function TaskDetail({ task, address, close }) {
  return html`<section class="panel task-detail"><header><h2>${task.id}</h2><${Score} value=${task.score} />
      <${StopBadge} stop=${task.stop_reason} error=${task.error_kind} /><span class="grow"></span>
      ${address === undefined ? null : html`<a class="button" href=${address}>Trajectory</a>`}
      <a class="button" href=${close}>Close</a></header>
    <div class="body"><dl class="facts"><${SpentFacts} spent=${task.spent} seconds=${task.seconds} /></dl>
      ${[["Question", task.question], ["Expected", task.expected], ["Answer", task.answer], ["Error", task.error]].map(([name, value]) =>
        (value === null || value === undefined ? null : html`<h3>${name}</h3><${LongText} kind=${name === "Error" ? "output error" : "text-block"} value=${asText(value)} />`))}
      ${task.answer === null && !task.error ? html`<p class="muted">No answer.</p>` : null}</div></section>`;
}

export function EvaluationPage({ source, parts: [file = ""], query }) {
  const { value, error } = useData(() => source.evaluation(file), [source, file]);
  const listing = useListing(source);
  if (error !== null) return html`<${Failure} title="The evaluation cannot be read" error=${error} />`;
  if (value === null) return html`<${Loading} what="Reading the results" />`;
  const given = Object.fromEntries(query);
  const address = (changes) => link(["evaluation", file], { ...given, ...changes });
  const { scores } = value;
  const tasks = [...value.tasks].sort((a, b) => a.id.localeCompare(b.id, "en", { numeric: true }));
  const values = tasks.map((task) => task.score).filter(isNumber);
  const words = (query.get("find") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const endings = [...new Set(tasks.flatMap((task) => [task.stop_reason, task.error_kind]).filter(Boolean))];
  const isInBin = testOfBin(query.get("score"), values);
  const shown = tasks.filter((task) => isInBin(task.score)
    && (!query.get("end") || task.stop_reason === query.get("end") || task.error_kind === query.get("end"))
    && words.every((word) => `${task.id}\n${task.kind}\n${task.answer}\n${task.question ?? ""}`.toLowerCase().includes(word)));
  const chosen = tasks.find((task) => task.id === query.get("task"));
  const name = listing.value?.files.find((each) => each.id === file)?.name ?? "Evaluation";
  const failed = tasks.filter((task) => task.score === null).length;
  return html`<div class="evaluation">
    <h1>${name}</h1>
    <dl class="facts"><${Fact} name="tasks">${count(tasks.length)}<//>
      ${failed === 0 ? null : html`<${Fact} name="without a score"><span class="bad-text">${count(failed)}</span><//>`}
      <${SpentFacts} spent=${sumOf(tasks)} seconds=${tasks.reduce((sum, task) => sum + task.seconds, 0)} /></dl>
    <div class="list-head"><section class="panel"><div class="body"><${Scores} scores=${scores} /></div></section>
      <section class="panel spread"><div class="body"><${Histogram} values=${values} noun="task" chosen=${query.get("score")} addressOf=${(bin) => address({ score: bin })} /></div></section></div>
    ${chosen === undefined ? null : html`<${TaskDetail} task=${chosen} address=${trajectoryOf(chosen, listing.value)} close=${address({ task: null })} />`}
    <div class="filters"><label class="grow"><span class="visually-hidden">Search</span>
        <input type="search" placeholder="Search id, kind, answer" value=${query.get("find") ?? ""}
          onInput=${(event) => replaceRoute(address({ find: event.currentTarget.value }))} /></label>
      <label><span class="visually-hidden">Ending</span><select value=${query.get("end") ?? ""} onChange=${(event) => replaceRoute(address({ end: event.currentTarget.value }))}>
        <option value="">Any ending</option>${endings.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label></div>
    <section class="panel runs"><header><h2>Tasks</h2><span class="muted" role="status">${shown.length === tasks.length ? count(tasks.length) : `${count(shown.length)} of ${count(tasks.length)}`}</span></header>
      ${shown.length === 0 ? html`<${Empty} title="No task matches"><a href=${link(["evaluation", file])}>Clear the filters</a><//>`
        : html`<${VirtualList} count=${shown.length} height=${ROW} attributes=${{ role: "list", "aria-label": "Tasks" }} render=${(index) => {
          const task = shown[index];
          return html`<div role="listitem" key=${task.id} class=${`run-row${task === chosen ? " chosen" : ""}`}>
            <a class="run-link" href=${address({ task: task.id })}>
              <span class="texts"><b class="one-line">${task.id}</b><span class="one-line muted">${task.error ?? oneLine(task.answer ?? "no answer")}</span></span>
              <span class="ends"><${StopBadge} stop=${task.stop_reason} error=${task.error_kind} /></span>
              <span class="cell-score"><${Score} value=${task.score} /></span>
              <span class="number muted wide">${plural(task.spent?.calls, "call")}</span>
              <span class="number muted wide">${dollars(task.spent?.usd, task.spent?.unpriced_calls)}</span>
              <span class="number muted wide">${duration(task.seconds)}</span></a></div>`;
        }} />`}</section>
  </div>`;
}
