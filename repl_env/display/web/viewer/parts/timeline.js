// The time of a run and of the runs below it: model calls, cells, and waits for sub-calls in cells.

import { html, useLayoutEffect, useMemo, useRef, useState } from "../../vendor/preact-htm.module.js";
import { duration } from "../../shared/format.js";
import { link } from "../data/router.js";
import { timeTicks } from "./time_ticks.js";

const LANE = 26;
const LABEL = 64;
const MAX_LANES = 12;
const TICK = 84; // pixels for a label, at least
const KINDS = { model: "model calls", cell: "cells", wait: "waits for sub-calls" };

// Pieces of a run: { kind, from, to, turn }, those of a kind in order.
function piecesOf(run, end) {
  const pieces = [];
  for (const turn of run.turns) {
    if (turn.row?.time !== undefined) {
      pieces.push({ kind: "model", from: turn.row.time - (turn.row.seconds ?? 0), to: turn.row.time, turn: turn.number });
    }
    for (const { started, ran, calls } of turn.cells) {
      const to = ran?.time ?? end;
      const from = started?.time ?? to - (ran?.seconds ?? 0);
      pieces.push({ kind: "cell", from, to, turn: turn.number });
      for (const wait of union(calls, end)) pieces.push({ kind: "wait", ...wait, turn: turn.number });
    }
  }
  return pieces.filter(({ from, to }) => Number.isFinite(from) && Number.isFinite(to) && to >= from);
}

// The times in which at least one of the calls had no answer yet.
function union(calls, end) {
  const spans = calls
    .map(({ started, ended }) => {
      const to = ended?.time ?? end;
      return { from: started?.time ?? to - (ended?.seconds ?? 0), to };
    })
    .sort((a, b) => a.from - b.from);
  const merged = [];
  for (const span of spans) {
    const last = merged[merged.length - 1];
    if (last !== undefined && span.from <= last.to) last.to = Math.max(last.to, span.to);
    else merged.push({ ...span });
  }
  return merged;
}

// Fewer rectangles than pixels: neighbours of a kind that touch on the screen are one.
function merged(pieces, scale) {
  const found = [];
  const last = {};
  for (const piece of pieces) {
    const before = last[piece.kind];
    if (before !== undefined && (piece.from - before.to) * scale < 0.5 && (before.to - before.from) * scale < 3) {
      before.to = Math.max(before.to, piece.to);
      continue;
    }
    last[piece.kind] = { ...piece };
    found.push(last[piece.kind]);
  }
  return found;
}

function sums(pieces) {
  const total = { model: 0, cell: 0, wait: 0 };
  for (const { kind, from, to } of pieces) total[kind] += to - from;
  return total;
}

function timesOf(tree, run) {
  const lanes = [run, ...run.children].slice(0, MAX_LANES);
  const from = run.started?.time ?? tree.first;
  const to = Math.max(run.ended?.time ?? tree.latest, from + 1e-6);
  const all = lanes.map((each) => piecesOf(each, each.ended?.time ?? to));
  return { lanes, from, to, all, total: sums(all[0]) };
}

function useWidth(place) {
  const [width, setWidth] = useState(720);
  useLayoutEffect(() => {
    const watcher = new ResizeObserver(([entry]) => setWidth(Math.max(240, Math.floor(entry.contentRect.width))));
    watcher.observe(place.current);
    return () => watcher.disconnect();
  }, []);
  return width;
}

// While a file is read, the drawing is that of its beginning: all pieces anew for each part of the file
// would take longer than a frame.
export function Timeline({ file, state: { tree, loading }, run }) {
  const known = Number.isFinite(run.started?.time ?? tree.first);
  return known ? html`<${Drawing} file=${file} tree=${tree} run=${run} version=${loading ? -1 : tree.rows.length} />` : html`<p class="muted">No times are recorded.</p>`;
}

function Drawing({ file, tree, run, version }) {
  const place = useRef(null);
  const width = useWidth(place);
  const times = useMemo(() => timesOf(tree, run), [tree, run, version]);
  const drawn = useMemo(() => drawing(file, run, times, width), [file, run, times, width]);
  return html`<div class="timeline" ref=${place}>${drawn}</div>`;
}

// The same elements as long as nothing changed, which Preact does not look through again.
function drawing(file, run, { lanes, from, to, all, total }, width) {
  const room = width - LABEL - 8;
  const scale = room / (to - from);
  const height = lanes.length * LANE + 22;
  const ticks = timeTicks(to - from, Math.floor(room / TICK) + 1).map(({ at, label }) => ({ x: at * scale, label }));
  const text = Object.entries(KINDS).map(([kind, name]) => `${duration(total[kind])} in ${name}`).join(", ");
  return html`<svg width=${width} height=${height} role="group" aria-label=${`Timeline of run ${run.id}: ${text}`}>
      ${ticks.map(({ x, label }) => html`<g key=${label}>
        <line class="tick" x1=${LABEL + x} x2=${LABEL + x} y1="0" y2=${height - 18} />
        <text class="tick" x=${LABEL + x} y=${height - 4}
          text-anchor=${x === 0 ? "start" : x > room - TICK / 2 ? "end" : "middle"}>${label}</text></g>`)}
      ${lanes.map((each, lane) => html`<g key=${each.id} transform=${`translate(0 ${lane * LANE})`}>
        <a href=${link(["run", file, each.id])} tabindex="-1"><text class="lane" x="0" y="17">${shortId(each.id)}</text></a>
        ${merged(all[lane], scale).map((piece) => {
          const x = LABEL + (piece.from - from) * scale;
          const wide = Math.max(1.5, (piece.to - piece.from) * scale);
          const wait = piece.kind === "wait";
          return html`<a href=${link(["run", file, each.id, "turn", String(piece.turn)])} tabindex="-1">
            <title>${`Turn ${piece.turn}: ${duration(piece.to - piece.from)} of ${KINDS[piece.kind]}`}</title>
            <rect class=${`piece ${piece.kind}`} x=${x} y=${wait ? 14 : 4} width=${wide} height=${wait ? 8 : 18} rx="2" /></a>`;
        })}
      </g>`)}
    </svg>
    <p class="legend">${Object.entries(KINDS).map(([kind, name]) => html`<span key=${kind}>
      <i class=${`swatch ${kind}`} aria-hidden="true"></i>${name} <b class="number">${duration(total[kind])}</b></span>`)}
      ${run.children.length >= MAX_LANES
        ? html`<span class="muted">${run.children.length + 1 - MAX_LANES} more runs below</span>` : null}</p>`;
}

function shortId(id) {
  return id.length > 8 ? `…${id.slice(-7)}` : id;
}
