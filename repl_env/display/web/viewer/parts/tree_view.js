// The tree of a trajectory: runs, their turns, the calls of each turn and the runs below. One tab stop;
// arrows move and unfold, as in other trees.

import { html, useEffect, useMemo, useState } from "../../vendor/preact-htm.module.js";
import { dollars, duration, plural } from "../../shared/format.js";
import { VirtualList } from "../../shared/virtual_list.js";
import { callsOf, runFacts } from "../data/run_tree.js";
import { link, replaceRoute } from "../data/router.js";
import { Score, StopBadge } from "./labels.js";

const ROW = 34;
const FEW = 8; // calls of a turn that are shown unfolded

// `place` is the part of the address behind the file.
function nodeOfRun(run, depth) {
  return { place: run.id, kind: "run", depth, run, many: run.turns.length + run.calls.size + run.children.length, open: depth < 2 };
}

// The node of a turn stays with the turn: while a file is read, a list of thousands is made many times.
function nodeOfTurn(turn, depth) {
  turn.node ??= { place: `${turn.run.id}/turn/${turn.number}`, kind: "turn", turn };
  const many = turn.cells.reduce((sum, cell) => sum + cell.calls.length, 0);
  return Object.assign(turn.node, { depth, many, open: many <= FEW });
}

function nodeOfCall(call, depth) {
  if (call.child !== null) return { ...nodeOfRun(call.child, depth), call };
  return { place: `${call.run.id}/call/${call.id}`, kind: "call", depth, call, many: 0, open: false };
}

function addressOf(file, node) {
  return link(["run", file, ...node.place.split("/")]);
}

// All nodes in sight of an unfolded tree, in order.
function flattened(tree, folds) {
  const nodes = [];
  const visit = (node) => {
    nodes.push(node);
    node.unfolded = node.many > 0 && (folds.get(node.place) ?? node.open);
    if (!node.unfolded) return;
    if (node.kind === "run") {
      const inTurns = new Set();
      for (const turn of node.run.turns) {
        for (const cell of turn.cells) for (const call of cell.calls) inTurns.add(call.id);
        visit(nodeOfTurn(turn, node.depth + 1));
      }
      // Those whose cell or call is not recorded.
      for (const child of node.run.children) if (!inTurns.has(child.id)) visit(nodeOfRun(child, node.depth + 1));
      for (const call of node.run.calls.values()) {
        if (call.child === null && !inTurns.has(call.id)) visit(nodeOfCall(call, node.depth + 1));
      }
    } else {
      for (const call of callsOf(node.turn)) visit(nodeOfCall(call, node.depth + 1));
    }
  };
  for (const run of tree.roots) visit(nodeOfRun(run, 0));
  return nodes;
}

function RunLine({ node }) {
  const facts = runFacts(node.run);
  return html`<span class="kind run">run ${node.run.id}</span>
    <span class="one-line grow">${facts.question}</span>
    ${facts.stop === "running" || facts.error ? html`<${StopBadge} stop=${facts.stop} error=${facts.error} />` : null}
    ${facts.reward === undefined ? null : html`<${Score} value=${facts.reward} />`}`;
}

function TurnLine({ node: { turn, many } }) {
  const cell = turn.cells[0];
  const failed = turn.cells.some(({ ran }) => ran?.ok === false);
  const pictures = turn.cells.some(({ ran }) => ran?.figures > 0);
  const code = cell?.ran?.text ?? cell?.started?.text ?? turn.row?.text ?? "";
  return html`<span class="kind">${turn.number}</span>
    <span class=${`one-line grow${cell === undefined ? "" : " mono"}`}>${code}</span>
    ${pictures ? html`<span title="has figures" aria-label="has figures">▦</span>` : null}
    ${failed ? html`<span class="badge bad">error</span>` : null}
    ${many === 0 ? null : html`<span class="badge">${plural(many, "call")}</span>`}
    <span class="number muted time">${duration(turn.row?.seconds ?? cell?.ran?.seconds)}</span>`;
}

function CallLine({ node: { call } }) {
  const row = call.ended ?? call.started ?? {};
  return html`<span class="kind call">${call.id}</span>
    <span class="one-line grow">${row.prompt ?? ""}</span>
    ${row.error === undefined ? null : html`<span class="badge bad">error</span>`}
    <span class="number muted time">${call.ended === null ? "…" : row.usd === undefined ? duration(row.seconds) : dollars(row.usd)}</span>`;
}

const LINES = { run: RunLine, turn: TurnLine, call: CallLine };

export function TreeView({ file, state, chosen }) {
  const [folds, setFolds] = useState(new Map());
  const nodes = useMemo(() => flattened(state.tree, folds), [state, folds]);
  const place = useMemo(() => nodes.findIndex((node) => node.place === chosen), [nodes, chosen]);
  const [focus, setFocus] = useState(-1);
  useEffect(() => setFocus(place), [chosen, place >= 0]);

  const fold = (node, unfolded) => setFolds(new Map(folds).set(node.place, unfolded));
  const go = (index) => {
    const node = nodes[Math.max(0, Math.min(nodes.length - 1, index))];
    if (node !== undefined) replaceRoute(addressOf(file, node));
  };
  const parentOf = (index) => {
    let above = index;
    while (above > 0 && nodes[above].depth >= nodes[index].depth) above -= 1;
    return above;
  };
  const moves = {
    ArrowDown: () => go(place + 1),
    ArrowUp: () => go(place - 1),
    Home: () => go(0),
    End: () => go(nodes.length - 1),
    PageDown: () => go(place + 15),
    PageUp: () => go(place - 15),
    ArrowRight: () => (nodes[place]?.many > 0 && !nodes[place].unfolded ? fold(nodes[place], true) : go(place + 1)),
    ArrowLeft: () => (nodes[place]?.unfolded ? fold(nodes[place], false) : go(parentOf(place))),
  };
  const onKeyDown = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || moves[event.key] === undefined) return;
    event.preventDefault();
    moves[event.key]();
  };

  const row = (index) => {
    const node = nodes[index];
    return html`<div key=${node.place} id=${`node-${index}`} role="treeitem" aria-level=${node.depth + 1}
        aria-selected=${index === place ? "true" : "false"} aria-expanded=${node.many > 0 ? String(node.unfolded) : undefined}
        aria-posinset=${index + 1} aria-setsize=${nodes.length}
        class=${`node ${node.kind}${index === place ? " chosen" : ""}`} style=${{ paddingInlineStart: `${Math.min(node.depth, 12) * 14}px` }}>
      ${node.many > 0
        ? html`<button type="button" class="fold quiet" tabindex="-1" aria-label=${node.unfolded ? "Fold" : "Unfold"}
            onClick=${() => fold(node, !node.unfolded)}>${node.unfolded ? "▾" : "▸"}</button>`
        : html`<span class="fold"></span>`}
      <a class="line" tabindex="-1" href=${addressOf(file, node)}><${LINES[node.kind]} node=${node} /></a>
    </div>`;
  };
  return html`<${VirtualList} count=${nodes.length} height=${ROW} focus=${focus} render=${row} attributes=${{
    role: "tree", tabindex: 0, "aria-label": "Runs and turns", onKeyDown,
    "aria-activedescendant": place >= 0 ? `node-${place}` : undefined, class: "virtual-list tree",
  }} />`;
}
