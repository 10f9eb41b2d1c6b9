// A trajectory: the tree at the side, and what is chosen in it.

import { html, useEffect, useMemo, useRef, useState } from "../../vendor/preact-htm.module.js";
import { bytes, count, plural } from "../../shared/format.js";
import { Empty, Failure, Loading } from "../../shared/page_states.js";
import { useSignal } from "../../shared/use_signal.js";
import { link, replaceRoute } from "../data/router.js";
import { TrajectoryStore } from "../data/trajectory_store.js";
import { CallDetail } from "../parts/call_detail.js";
import { RunDetail } from "../parts/run_detail.js";
import { TreeView } from "../parts/tree_view.js";
import { TurnDetail } from "../parts/turn_detail.js";

// Returns the component of the address with its arguments, or null.
function chosenIn(tree, [runId, kind, name]) {
  const run = runId === undefined ? tree.roots[0] : tree.runs.get(runId);
  if (run === undefined) return null;
  if (kind === undefined) return { part: RunDetail, run };
  if (kind === "turn") {
    const turn = run.turnOf.get(Number(name));
    return turn === undefined ? null : { part: TurnDetail, turn };
  }
  const call = run.calls.get(name);
  return kind !== "call" || call === undefined ? null : { part: CallDetail, call };
}

function useStore(source, file) {
  const store = useMemo(() => new TrajectoryStore(source, file), [source, file]);
  useEffect(() => () => store.stop(), [store]);
  return store;
}

// The latest turn of a run that goes on, chosen as it comes while `follows`.
function useFollowing(state, file, follows) {
  const last = state.tree.rows.length;
  useEffect(() => {
    if (!follows) return;
    const turns = [...state.tree.runs.values()].map((run) => run.turns.at(-1)).filter((turn) => turn?.row);
    const newest = turns.reduce((best, turn) => (best === null || turn.row.index > best.row.index ? turn : best), null);
    if (newest !== null) replaceRoute(link(["run", file, newest.run.id, "turn", String(newest.number)]));
  }, [last, follows, file]);
}

export function TrajectoryPage({ source, parts: [file = "", ...place] }) {
  const store = useStore(source, file);
  const state = useSignal(store.state);
  const [follows, setFollows] = useState(false);
  useFollowing(state, file, follows);
  const main = useRef(null);
  const chosenPlace = place.join("/");
  useEffect(() => main.current?.scrollTo(0, 0), [chosenPlace]);
  const { tree, loading, error, size } = state;
  if (error !== null && tree.rows.length === 0) {
    return html`<${Failure} title="The trajectory cannot be read" error=${error} />`;
  }
  if (tree.roots.length === 0) {
    return loading ? html`<${Loading} what="Reading the trajectory" />`
      : html`<${Empty} title="No run yet"><p>The file has no event of a run.${source.live ? " This page shows them as they come." : ""}</p><//>`;
  }
  const chosen = chosenIn(tree, place);
  const going = source.live && !tree.complete;
  return html`<div class=${`trajectory${place.length === 0 ? " tree-first" : ""}`}>
    <aside class="side">
      <div class="side-head">
        <a href=${link([])}>All runs</a>
        <span class="muted number">${plural(tree.rows.length - (tree.header === null ? 0 : 1), "event")}, ${bytes(size)}</span>
        <span class="grow"></span>
        ${loading ? html`<span class="badge accent" role="status">reading…</span>` : null}
        ${going && !loading ? html`<button type="button" class="small" aria-pressed=${String(follows)} onClick=${() => setFollows(!follows)}>
          <span class="pulse" aria-hidden="true"></span>${follows ? "Following" : "Follow"}</button>` : null}
      </div>
      ${error === null ? null : html`<p class="note bad-text" role="alert">${error.message}</p>`}
      ${tree.broken === 0 ? null : html`<p class="note bad-text">${count(tree.broken)} broken lines are left out.</p>`}
      <${TreeView} file=${file} state=${state} chosen=${chosenPlace || tree.roots[0].id} />
    </aside>
    <article class="main" tabindex="-1" ref=${main}>
      <a class="back" href=${link(["run", file])}>← Runs and turns</a>
      ${chosen === null
        ? loading ? html`<${Loading} />` : html`<${Empty} title="Not in this trajectory"><p>${place.join(" › ")}</p><//>`
        : html`<${chosen.part} key=${chosenPlace} store=${store} state=${state} ...${chosen} />`}
    </article>
  </div>`;
}
