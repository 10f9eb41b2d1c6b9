// A session: the form that starts an episode, then its cells, the editor and the panels beside them.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact-htm.module.js";
import { duration, plural } from "../shared/format.js";
import { useSignal } from "../shared/use_signal.js";
import { CellView, TaskView } from "./cell_view.js";
import { CodeEditor } from "./code_editor.js";
import { FilesPanel } from "./files_panel.js";
import { tabTrouble } from "./kept_work.js";
import { EndedPanel, OutcomeView } from "./outcome_view.js";
import { EpisodePanel, VariablesPanel } from "./side_panels.js";
import { StartForm } from "./start_form.js";
import { EarlierWork, Welcome } from "./welcome.js";

const NEAR = 40; // pixels below the window at which the end still counts as in sight

function Reconnecting({ session }) {
  const seconds = useSignal(session.connection.lostFor);
  const grace = session.connection.facts?.grace_s ?? null;
  const told = grace === null ? "Looking for the session."
    : seconds <= grace ? `The connection was lost. Reconnecting; without a connection, the server keeps the session for ${duration(grace)}.`
      : `No connection for ${duration(seconds)}, and the server keeps a session for ${duration(grace)}: this one has probably ended. The page still asks for it.`;
  return html`<p class="notice warn" role="status">${told}</p>`;
}

function Notices({ session }) {
  const state = useSignal(session.connection.state);
  const notice = useSignal(session.notice);
  const skipped = useSignal(session.cells).filter(({ status }) => status === "skipped").length;
  const inTab = useSignal(tabTrouble);
  const trouble = useSignal(session.trouble);
  const told = trouble !== null ? `The cells are on this page only: ${trouble}. Download them before you leave or reload the page.`
    : inTab !== null ? `A reload of this page will not find its session again: ${inTab}.` : null;
  const runnable = (state === "open" || state === "reconnecting") && !session.last.value?.done && !session.lost.value;
  return html`<div class="notices">
    ${state === "reconnecting" || (state === "connecting" && session.last.value !== null) ? html`<${Reconnecting} session=${session} />` : null}
    ${skipped > 0 && runnable ? html`<p class="notice warn" role="status">${plural(skipped, "cell")} did not run.
      <button type="button" class="small" onClick=${() => session.runSkipped()}>Run ${skipped === 1 ? "it" : "them"}</button></p>` : null}
    ${told === null || session.last.value === null ? null : html`<p class="notice warn" role="alert">${told}</p>`}
    ${notice === null ? null : html`<p class=${`notice ${notice.kind === "error" ? "bad" : "accent"}`} role="alert">${notice.text}
      <button type="button" class="quiet small" aria-label="Dismiss" onClick=${() => { session.notice.value = null; }}>×</button></p>`}</div>`;
}

function Controls({ session, onRun, onUndo, onBranch }) {
  const busy = useSignal(session.busy);
  const undoable = useSignal(session.undoable);
  const open = useSignal(session.connection.state) === "open";
  const code = useSignal(session.draft);
  const empty = code.trim() === "";
  return html`<div class="controls">
    ${busy === "cell"
      ? html`<button type="button" class="stop" onClick=${() => session.interrupt()}>Interrupt</button>
        <button type="button" disabled=${empty} title="Run this when the running cell has ended" onClick=${onRun}>Queue</button>`
      : html`<button type="button" class="primary" disabled=${busy !== null || !open || empty} onClick=${onRun}>Run</button>`}
    <button type="button" disabled=${busy !== null || !open || undoable === 0} title="Take back the last cell: variables and files" onClick=${onUndo}>Undo</button>
    <button type="button" disabled=${busy !== null || !open} title="Go on in a copy of this session" onClick=${onBranch}>Branch</button>
    ${session.title === "Session" ? null : html`<span class="badge accent">${session.title}</span>`}
    <span id="editor-keys" class="muted keys"><kbd>Shift</kbd>+<kbd>Enter</kbd> ${busy === "cell" ? "queues" : "runs"} · <kbd>↑</kbd> earlier code · <kbd>Ctrl</kbd>+<kbd>Z</kbd> in the empty editor undoes · <kbd>Esc</kbd>, then <kbd>Tab</kbd>, leaves the editor</span>
  </div>`;
}

function Editor({ session, onBranch }) {
  const draft = useSignal(session.draft);
  const place = useRef(0); // how many cells back the shown code is
  const codes = () => session.cells.value.filter((each) => each.kind === "cell").map((each) => each.code);
  const running = useSignal(session.busy) === "cell";
  const run = () => {
    const code = session.draft.value;
    if (code.trim() === "") return;
    session.draft.value = "";
    place.current = 0;
    session.run(code);
  };
  const undo = async () => {
    const code = await session.undo();
    if (code !== null && session.draft.value === "") session.edit(code);
  };
  const earlier = (step, area) => {
    const all = codes();
    const wanted = place.current + step;
    const unchanged = place.current > 0 && area.value === all[all.length - place.current];
    if ((area.value !== "" && !unchanged) || wanted < 0 || wanted > all.length) return false;
    place.current = wanted;
    session.draft.value = wanted === 0 ? "" : all[all.length - wanted];
    return true;
  };
  const stop = () => session.busy.value === "cell" && session.interrupt();
  return html`<div class=${running ? "panel composer" : "panel composer sticky"}>
    <${CodeEditor} value=${draft} asked=${useSignal(session.edited)} onInput=${(text) => { session.draft.value = text; }} onRun=${run} onUndo=${undo} onEarlier=${earlier} onStop=${stop} />
    <${Controls} session=${session} onRun=${run} onUndo=${undo} onBranch=${onBranch} /></div>`;
}

function Cells({ session }) {
  const cells = useSignal(session.cells);
  const connected = useSignal(session.connection.state) === "open";
  let number = 0;
  const reuse = (code) => session.edit(code);
  const takeBack = ({ id, code }) => {
    session.takeBack((each) => each.id === id);
    if (session.draft.value === "") reuse(code);
  };
  return html`<div class="cells">${cells.length === 0 ? html`<p class="muted hint">Variables stay from cell to cell.${" "}
      <code>FINAL(answer)</code> ends the episode with an answer.</p>` : null}
    ${cells.map((each) => (each.kind === "task" ? html`<${TaskView} key=${each.id} task=${each.task} />`
      : html`<${CellView} key=${each.id} cell=${each} number=${number += 1} connected=${connected} onReuse=${reuse} onTakeBack=${() => takeBack(each)} />`))}</div>`;
}

// Keeps the end of the column in sight while it grows, unless the visitor has scrolled away from it.
function useEndInSight(column, end, cellCount, form) {
  const following = useRef(true);
  const show = () => end.current?.scrollIntoView({ block: "end" });
  useEffect(() => {
    let before = scrollY;
    const look = () => {
      // Output that grows moves the end away, too, but scrolls nothing upwards.
      const inSight = end.current !== null && end.current.getBoundingClientRect().bottom <= innerHeight + NEAR;
      following.current = inSight || (following.current && scrollY >= before);
      before = scrollY;
    };
    const watcher = new ResizeObserver(() => following.current && cellCount > 0 && show());
    watcher.observe(column.current);
    addEventListener("scroll", look, { passive: true });
    return () => {
      watcher.disconnect();
      removeEventListener("scroll", look);
    };
  }, [cellCount > 0]);
  useLayoutEffect(() => {
    following.current = true;
    if (cellCount > 0) show();
  }, [cellCount, form]);
}

function Episode({ session, onBranch, onAgain, onRestart, onForm, form }) {
  const observation = useSignal(session.last);
  const task = useSignal(session.task);
  const busy = useSignal(session.busy);
  const state = useSignal(session.connection.state);
  const lost = useSignal(session.lost);
  const column = useRef(null);
  const end = useRef(null);
  const ended = state === "closed" || lost;
  useEndInSight(column, end, useSignal(session.cells).length, form);
  return html`<div class="columns"><div class="column" ref=${column}>
      <${Cells} session=${session} />
      ${form === "follow-up" ? html`<${StartForm} followsUp busy=${busy !== null} onStart=${(...given) => session.followUp(...given)} onCancel=${() => onForm(null)} />` : null}
      ${observation.done && form === null ? html`<${OutcomeView} observation=${observation} scored=${task?.scored ?? false} ended=${ended}
        onFollowUp=${() => onForm("follow-up")} onRestart=${() => onForm("start")} />` : null}
      <${Notices} session=${session} />
      ${ended ? html`<${EndedPanel} session=${session} lost=${lost && state !== "closed"} onAgain=${onAgain}
        onRestart=${lost && state !== "closed" ? () => onForm("start") : onRestart} />` : null}
      ${observation.done || ended ? null : html`<${Editor} session=${session} onBranch=${onBranch} />`}
      <div ref=${end} class="cells-end"></div>
    </div>
    <aside class="column" aria-label="Session"><${EpisodePanel} session=${session} ended=${ended} />
      ${ended ? null : html`<${VariablesPanel} session=${session} /><${FilesPanel} session=${session} />`}</aside></div>`;
}

export function SessionView({ session, onEarlier, ...actions }) {
  const observation = useSignal(session.last);
  const busy = useSignal(session.busy);
  const [form, setForm] = useState(null); // "start" or "follow-up" over a finished episode
  useEffect(() => setForm(null), [observation?.done]);
  if (observation !== null && form !== "start") return html`<${Episode} session=${session} form=${form} onForm=${setForm} ...${actions} />`;
  return html`<${Notices} session=${session} />
    ${observation === null ? html`<${Welcome} session=${session} />` : null}
    <${StartForm} busy=${busy !== null} onStart=${async (...given) => { await session.start(...given); setForm(null); }}
      onCancel=${observation === null ? null : () => setForm(null)} />
    ${observation === null ? html`<${EarlierWork} onOpen=${onEarlier} />` : null}`;
}
