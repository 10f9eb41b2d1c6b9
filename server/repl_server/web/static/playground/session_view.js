// A session: the form that starts an episode, then its cells, the editor and the panels beside them.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact-htm.module.js";
import { Failure } from "../shared/page_states.js";
import { useSignal } from "../shared/use_signal.js";
import { CellView, TaskView } from "./cell_view.js";
import { CodeEditor } from "./code_editor.js";
import { FilesPanel } from "./files_panel.js";
import { OutcomeView } from "./outcome_view.js";
import { EpisodePanel, VariablesPanel } from "./side_panels.js";
import { StartForm } from "./start_form.js";

function Notices({ session }) {
  const state = useSignal(session.connection.state);
  const notice = useSignal(session.notice);
  return html`<div class="notices">
    ${state === "reconnecting" ? html`<p class="notice warn" role="status">The connection was lost. Reconnecting; the session goes on.</p>` : null}
    ${notice === null ? null : html`<p class=${`notice ${notice.kind === "error" ? "bad" : "accent"}`} role="alert">${notice.text}
      <button type="button" class="quiet small" aria-label="Dismiss" onClick=${() => { session.notice.value = null; }}>×</button></p>`}</div>`;
}

function Controls({ session, onRun, onUndo, onBranch }) {
  const busy = useSignal(session.busy);
  const undoable = useSignal(session.undoable);
  const open = useSignal(session.connection.state) === "open";
  const code = useSignal(session.draft);
  return html`<div class="controls">
    ${busy === "cell"
      ? html`<button type="button" class="stop" onClick=${() => session.interrupt()}>Interrupt</button>`
      : html`<button type="button" class="primary" disabled=${busy !== null || !open || code.trim() === ""} onClick=${onRun}>Run</button>`}
    <button type="button" disabled=${busy !== null || !open || undoable === 0} title="Take back the last cell: variables and files" onClick=${onUndo}>Undo</button>
    <button type="button" disabled=${busy !== null || !open} title="Go on in a copy of this session" onClick=${onBranch}>Branch</button>
    <span id="editor-keys" class="muted keys"><kbd>Shift</kbd>+<kbd>Enter</kbd> runs · <kbd>↑</kbd> earlier code · <kbd>Ctrl</kbd>+<kbd>Z</kbd> in the empty editor undoes · <kbd>Esc</kbd>, then <kbd>Tab</kbd>, leaves the editor</span>
  </div>`;
}

function Editor({ session, onBranch }) {
  const draft = useSignal(session.draft);
  const place = useRef(0); // how many cells back the shown code is
  const codes = () => session.cells.value.filter((each) => each.kind === "cell").map((each) => each.code);
  const run = async () => {
    const code = session.draft.value;
    if (code.trim() === "" || session.busy.value !== null) return;
    session.draft.value = "";
    place.current = 0;
    await session.run(code);
  };
  const undo = async () => {
    const code = await session.undo();
    if (code !== null && session.draft.value === "") session.draft.value = code;
  };
  const branch = async () => {
    const other = await session.branch();
    if (other !== null) onBranch(other);
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
  return html`<div class="panel composer">
    <${CodeEditor} value=${draft} onInput=${(text) => { session.draft.value = text; }} onRun=${run} onUndo=${undo} onEarlier=${earlier} onStop=${stop} />
    <${Controls} session=${session} onRun=${run} onUndo=${undo} onBranch=${branch} /></div>`;
}

function Cells({ session }) {
  const cells = useSignal(session.cells);
  let number = 0;
  return html`<div class="cells">${cells.length === 0 ? html`<p class="muted hint">Variables stay from cell to cell.
      <code>FINAL(answer)</code> ends the episode with an answer.</p>` : null}
    ${cells.map((each) => (each.kind === "task" ? html`<${TaskView} key=${each.id} task=${each.task} />`
      : html`<${CellView} key=${each.id} cell=${each} number=${number += 1} onReuse=${(code) => { session.draft.value = code; }} />`))}</div>`;
}

export function SessionView({ session, onBranch, onRestart }) {
  const observation = useSignal(session.last);
  const task = useSignal(session.task);
  const busy = useSignal(session.busy);
  const state = useSignal(session.connection.state);
  const [form, setForm] = useState(null); // "start" or "follow-up" over a finished episode
  const lost = useSignal(session.lost);
  const end = useRef(null);
  const cellCount = useSignal(session.cells).length;
  useEffect(() => setForm(null), [observation?.done]);
  useLayoutEffect(() => {
    if (cellCount > 0) end.current?.scrollIntoView({ block: "end" });
  }, [cellCount, busy, form]);
  if (state === "closed" && observation !== null) {
    return html`<${Failure} title="This session has ended" error=${session.connection.ending} />
      <div class="row center"><button type="button" class="primary" onClick=${onRestart}>Open another session</button></div>`;
  }
  if (observation === null || form === "start") {
    return html`<${Notices} session=${session} /><${StartForm} busy=${busy !== null} onStart=${async (...given) => { await session.start(...given); setForm(null); }}
      onCancel=${observation === null ? null : () => setForm(null)} />`;
  }
  return html`<div class="columns"><div class="column">
      <${Cells} session=${session} />
      ${form === "follow-up" ? html`<${StartForm} followsUp busy=${busy !== null} onStart=${(...given) => session.followUp(...given)} onCancel=${() => setForm(null)} />` : null}
      ${observation.done && form === null ? html`<${OutcomeView} observation=${observation} scored=${task?.scored ?? false}
        onFollowUp=${() => setForm("follow-up")} onRestart=${() => setForm("start")} />` : null}
      <${Notices} session=${session} />
      ${lost ? html`<div class="panel"><div class="body"><p>The server has lost this episode. Its cells are above; the session starts anew.</p>
        <p class="row"><button type="button" class="primary" onClick=${() => setForm("start")}>Start over</button></p></div></div>` : null}
      ${observation.done || lost ? null : html`<${Editor} session=${session} onBranch=${onBranch} />`}
      <div ref=${end} class="cells-end"></div>
    </div>
    <aside class="column" aria-label="Session"><${EpisodePanel} session=${session} /><${VariablesPanel} session=${session} />
      <${FilesPanel} session=${session} /></aside></div>`;
}
