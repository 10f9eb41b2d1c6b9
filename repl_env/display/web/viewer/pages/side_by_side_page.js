// Runs beside each other, turn by turn: samples of one group, branches of one question.

import { html, useEffect, useMemo, useState } from "../../vendor/preact-htm.module.js";
import { asText, count } from "../../shared/format.js";
import { LongText } from "../../shared/long_text.js";
import { Empty, Failure, Loading } from "../../shared/page_states.js";
import { useSignal } from "../../shared/use_signal.js";
import { link } from "../data/router.js";
import { runFacts } from "../data/run_tree.js";
import { TrajectoryStore } from "../data/trajectory_store.js";
import { useData } from "../data/use_data.js";
import { CellView } from "../parts/cell_view.js";
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

function Answer({ store, run }) {
  const { value } = useData(() => (run.ended === null ? null : store.event(run.ended)), [run.ended?.at, run.ended?.index]);
  if (run.ended === null) return html`<p class="muted">The run has not ended.</p>`;
  const answer = value === null ? run.ended.text : value.final_answer;
  return answer === null || answer === undefined ? html`<p class="muted">No answer.</p>` : html`<${LongText} kind="text-block prose" value=${asText(answer)} />`;
}

function Column({ store, id, shown, report }) {
  const state = useSignal(store.state);
  const run = id === "" ? state.tree.roots[0] : state.tree.runs.get(id);
  const turns = run?.turns.length ?? 0;
  useEffect(() => report(turns), [turns]);
  if (state.error !== null) return html`<${Failure} error=${state.error} />`;
  if (run === undefined) return state.loading ? html`<${Loading} />` : html`<${Empty} title="No such run"><p>${id}</p><//>`;
  const facts = runFacts(run);
  return html`<header class="side-facts">
      <h2><a href=${link(["run", store.file, run.id])}>${run.started?.task ?? `run ${run.id}`}</a> <${StopBadge} stop=${facts.stop} error=${facts.error} /></h2>
      <dl class="facts"><${Fact} name="reward"><${Score} value=${facts.reward} /><//><${Fact} name="turns">${count(turns)}<//>
        <${SpentFacts} spent=${facts.total} seconds=${facts.seconds} /></dl>
      <div class="side-answer"><span class="muted">answer</span><${Answer} store=${store} run=${run} /></div>
    </header>
    ${run.turns.slice(0, shown).map((turn) => html`<${TurnCell} key=${turn.number} store=${store} turn=${turn} />`)}`;
}

export function SideBySidePage({ source, query }) {
  const text = query.get("runs") ?? "";
  const [shown, setShown] = useState(PAGE);
  const [longest, setLongest] = useState(0);
  const columns = useMemo(() => {
    const stores = new Map();
    return text.split(",").filter(Boolean).slice(0, MOST).map((each) => {
      const [file, id = ""] = each.split(":");
      if (!stores.has(file)) stores.set(file, new TrajectoryStore(source, file));
      return { key: each, id, store: stores.get(file) };
    });
  }, [source, text]);
  useEffect(() => () => columns.forEach(({ store }) => store.stop()), [columns]);
  if (columns.length === 0) return html`<${Empty} title="No run is chosen"><a href=${link([])}>Choose runs in the list</a><//>`;
  return html`<div class="side-page">
    <h1>Side by side</h1>
    <div class="columns" tabindex="0" style=${{ gridTemplateColumns: `repeat(${columns.length}, minmax(18rem, 1fr))` }}>
      ${columns.map(({ key, id, store }) => html`<section class="panel column" key=${key}>
        <${Column} store=${store} id=${id} shown=${shown} report=${(turns) => setLongest((before) => Math.max(before, turns))} /></section>`)}
    </div>
    ${longest <= shown ? null : html`<button type="button" onClick=${() => setShown(shown + 10)}>Show more turns (${count(longest - shown)})</button>`}
  </div>`;
}
