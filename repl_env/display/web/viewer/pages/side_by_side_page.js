// Runs beside each other, turn by turn: samples of one group, branches of one question.

import { html, useEffect, useMemo, useState } from "../../vendor/preact-htm.module.js";
import { asText, count, moment, score } from "../../shared/format.js";
import { LongText } from "../../shared/long_text.js";
import { Empty, Failure, Loading } from "../../shared/page_states.js";
import { useScrollStop } from "../../shared/scroll_stop.js";
import { useSignal } from "../../shared/use_signal.js";
import { groupsOf, runsOf } from "../data/groups.js";
import { link } from "../data/router.js";
import { runFacts } from "../data/run_tree.js";
import { TrajectoryStore } from "../data/trajectory_store.js";
import { useData, useListing } from "../data/use_data.js";
import { CellView } from "../parts/cell_view.js";
import { Histogram, testOfBin } from "../parts/histogram.js";
import { Fact, Score, SpentFacts, StopBadge } from "../parts/labels.js";
import { ReplyText } from "../parts/reply_text.js";

const MOST = 6;
const PAGE = 3; // turns that are shown at first

function TurnCell({ store, turn }) {
  const { value, error } = useData(() => (turn.row === null ? {} : store.event(turn.row)), [turn.row?.at, turn.row?.index]);
  if (error !== null) return html`<${Failure} error=${error} />`;
  return html`<div class="side-turn">
    <h3><a href=${link(["run", store.file, turn.run.id, "turn", String(turn.number)])}>Turn ${turn.number}</a></h3>
    ${value === null ? html`<p class="muted">Loading…</p>` : html`<details open=${turn.cells.length === 0}>
      <summary>Reply <span class="badge sampled">sampled</span></summary><${ReplyText} value=${value.completion?.text} /></details>`}
    ${turn.cells.map((cell) => html`<${CellView} key=${cell.number} store=${store} cell=${cell} />`)}
  </div>`;
}

function AnswerText({ store, run }) {
  const { value } = useData(() => (run.ended === null ? null : store.event(run.ended)), [run.ended?.at, run.ended?.index]);
  if (run.ended === null) return html`<p class="muted">The run has not ended.</p>`;
  const answer = value === null ? run.ended.text : value.final_answer;
  return answer === null || answer === undefined ? html`<p class="muted">No answer.</p>` : html`<${LongText} kind="text-block prose" value=${asText(answer)} />`;
}

function Answer({ store, run }) {
  const stop = useScrollStop();
  return html`<div class="side-answer" role="group" aria-label="Answer" ...${stop}><span class="muted">answer</span>
    <${AnswerText} store=${store} run=${run} /></div>`;
}

function Column({ store, id, title, shown, report }) {
  const state = useSignal(store.state);
  const run = id === "" ? state.tree.roots[0] : state.tree.runs.get(id);
  const turns = run?.turns.length ?? 0;
  useEffect(() => report(turns), [turns]);
  if (state.error !== null) return html`<${Failure} error=${state.error} />`;
  if (run === undefined) return state.loading ? html`<${Loading} />` : html`<${Empty} title="No such run"><p>${id}</p><//>`;
  const facts = runFacts(run);
  return html`<header class="side-facts">
      <h2><a href=${link(["run", store.file, run.id])}>${title ?? run.started?.task ?? `run ${run.id}`}</a> <${StopBadge} stop=${facts.stop} error=${facts.error} /></h2>
      <dl class="facts"><${Fact} name="reward"><${Score} value=${facts.reward} /><//><${Fact} name="turns">${count(turns)}<//>
        <${SpentFacts} spent=${facts.total} seconds=${facts.seconds} /></dl>
      <${Answer} store=${store} run=${run} />
    </header>
    ${run.turns.slice(0, shown).map((turn) => html`<${TurnCell} key=${turn.number} store=${store} turn=${turn} />`)}`;
}

function Columns({ source, runs }) {
  const [shown, setShown] = useState(PAGE);
  const [longest, setLongest] = useState(0);
  const text = runs.map((run) => run.key).join(",");
  const columns = useMemo(() => {
    const stores = new Map();
    return runs.map(({ key, title }) => {
      const [file, id = ""] = key.split(":");
      if (!stores.has(file)) stores.set(file, new TrajectoryStore(source, file));
      return { key, id, title, store: stores.get(file) };
    });
  }, [source, text]);
  useEffect(() => () => columns.forEach(({ store }) => store.stop()), [columns]);
  return html`<div class="columns" role="group" aria-label="Runs" tabindex="0" style=${{ gridTemplateColumns: `repeat(${columns.length}, minmax(18rem, 1fr))` }}>
      ${columns.map(({ key, id, title, store }) => html`<section class="panel column" key=${key}>
        <${Column} store=${store} id=${id} title=${title} shown=${shown} report=${(turns) => setLongest((before) => Math.max(before, turns))} /></section>`)}
    </div>
    ${longest <= shown ? null : html`<button type="button" onClick=${() => setShown(shown + 10)}>Show more turns (${count(longest - shown)})</button>`}`;
}

function Pager({ from, total, addressOf }) {
  if (total <= MOST) return null;
  const step = (place, label) => (place < 0 || place >= total ? html`<span class="button off" role="link" aria-disabled="true">${label}</span>`
    : html`<a class="button" href=${addressOf(place)}>${label}</a>`);
  return html`<nav class="pager" aria-label="Runs of the group">${step(from - MOST, "← Before")}
    <span class="number">${count(from + 1)} to ${count(Math.min(from + MOST, total))} of ${count(total)}</span>${step(from + MOST, "After →")}</nav>`;
}

// All runs of a group, the best first, with a histogram of their rewards.
function GroupSides({ source, query }) {
  const { value, error } = useListing(source);
  const id = query.get("group");
  const group = useMemo(() => (value === null ? undefined : groupsOf(runsOf(value)).find((each) => each.id === id)), [value, id]);
  if (error !== null) return html`<${Failure} title="The list cannot be read" error=${error} />`;
  if (value === null) return html`<${Loading} what="Reading the files" />`;
  if (group === undefined) return html`<${Empty} title="No such group"><a href=${link(["groups"])}>All groups</a><//>`;
  const bin = query.get("score");
  const masked = group.runs.filter((run) => run.stop !== "running" && run.reward === null).length;
  const isInBin = testOfBin(bin, group.rewards);
  const found = group.runs.filter((run) => isInBin(run.reward));
  const sorted = [...found].sort((a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity));
  const from = Math.max(0, Math.min(Number(query.get("from") ?? 0) || 0, sorted.length - 1));
  const runs = sorted.slice(from, from + MOST).map(({ key, name }) => ({ key, title: name.split("/").pop() }));
  return html`<div class="side-page">
    <section class="panel"><div class="body group-head">
      <div class="texts"><h1>${group.task || "Group"}</h1><p>${group.question ?? ""}</p>
        <dl class="facts"><${Fact} name="runs">${count(group.runs.length)}<//><${Fact} name="mean reward"><${Score} value=${group.mean} /><//>
          <${Fact} name="spread">${score(group.spread)}<//>${masked === 0 ? null : html`<${Fact} name="masked">${count(masked)}<//>`}
          <${Fact} name="began">${moment(group.time)}<//></dl></div>
      <${Histogram} values=${group.rewards} chosen=${bin} addressOf=${(name) => link(["side"], { group: id, score: name })} />
    </div></section>
    <${Pager} from=${from} total=${sorted.length} addressOf=${(place) => link(["side"], { group: id, score: bin, from: place || "" })} />
    ${runs.length === 0 ? html`<${Empty} title="No run has such a reward"><a href=${link(["side"], { group: id })}>All of the group</a><//>`
      : html`<${Columns} source=${source} runs=${runs} />`}
  </div>`;
}

export function SideBySidePage({ source, query }) {
  if (query.get("group")) return html`<${GroupSides} source=${source} query=${query} />`;
  const runs = (query.get("runs") ?? "").split(",").filter(Boolean).slice(0, MOST).map((key) => ({ key }));
  if (runs.length === 0) return html`<${Empty} title="No run is chosen"><a href=${link([])}>Choose runs in the list</a><//>`;
  return html`<div class="side-page"><h1>Side by side</h1><${Columns} source=${source} runs=${runs} /></div>`;
}
