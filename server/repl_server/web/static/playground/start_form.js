// The form that starts an episode: a context, a task, and the answer that earns a reward.

import { html, useRef, useState } from "../vendor/preact-htm.module.js";
import { bytes as size, count } from "../shared/format.js";
import { canUpload, uploadContext } from "./server_api.js";

const UPLOADED = 512 * 1024; // bytes; smaller contexts go with the reset
const STEPS = 200;
const EXAMPLE = {
  text: "date,city,visitors\n2024-05-01,Lisbon,412\n2024-05-01,Porto,230\n2024-05-02,Lisbon,388\n2024-05-02,Porto,301\n",
  task: "Which city had more visitors?",
  expected: "Lisbon",
};

// The context as a reset takes it: text if the bytes are UTF-8, else bytes.
async function contextArguments(bytes) {
  let text = null;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    // not text
  }
  if (bytes.byteLength > UPLOADED && canUpload()) {
    const sha256 = await uploadContext(bytes);
    return { uploads: { context: { sha256, type: text === null ? "bytes" : "text" } } };
  }
  if (text !== null) return { context: text };
  const letters = Array.from(new Uint8Array(bytes), (byte) => String.fromCharCode(byte)).join("");
  return { context: { $bytes: btoa(letters) } };
}

export function StartForm({ onStart, onCancel = null, followsUp = false, busy }) {
  const [fields, setFields] = useState({ text: "", task: "", expected: "", steps: String(STEPS) });
  const [file, setFile] = useState(null);
  const [over, setOver] = useState(false);
  const [error, setError] = useState(null);
  const chooser = useRef(null);
  const set = (name) => (event) => setFields({ ...fields, [name]: event.currentTarget.value });
  const submit = async (event) => {
    event.preventDefault();
    setError(null);
    try {
      const bytes = file === null ? new TextEncoder().encode(fields.text) : await file.arrayBuffer();
      const task = { prompt: fields.task.trim(), scored: fields.expected !== "" };
      await onStart(async () => ({
        ...(followsUp || bytes.byteLength === 0 ? {} : await contextArguments(bytes)),
        ...(task.prompt === "" ? {} : { task_prompt: task.prompt }),
        ...(task.scored ? { expected_answer: fields.expected } : {}),
        max_iterations: Math.max(1, Math.round(Number(fields.steps)) || STEPS),
      }), task);
    } catch (failure) {
      setError(failure.message);
    }
  };
  const dropped = (event) => {
    event.preventDefault();
    setOver(false);
    if (event.dataTransfer.files.length > 0) setFile(event.dataTransfer.files[0]);
  };
  return html`<form class="panel start" onSubmit=${submit}>
    <header><h2>${followsUp ? "New task in this session" : "Start a session"}</h2>
      ${followsUp ? html`<span class="muted">Variables and files stay.</span>`
        : html`<button type="button" class="small" onClick=${() => { setFile(null); setFields({ ...fields, ...EXAMPLE }); }}>Fill in an example</button>`}</header>
    <div class="body">
      ${followsUp ? null : html`<div class=${over ? "drop over" : "drop"} onDragOver=${(event) => { event.preventDefault(); setOver(true); }}
          onDragLeave=${() => setOver(false)} onDrop=${dropped}>
        <label for="context">Context <span class="muted">– the variable <code>context</code>; paste text, or drop a file</span></label>
        ${file === null
          ? html`<textarea id="context" rows="6" spellcheck=${false} value=${fields.text} onInput=${set("text")} placeholder="Optional"></textarea>`
          : html`<p class="chosen" id="context"><strong>${file.name}</strong> <span class="muted">${size(file.size)}</span>
              <button type="button" class="small" onClick=${() => setFile(null)}>Remove</button></p>`}
        <div class="row"><button type="button" class="small" onClick=${() => chooser.current.click()}>Choose a file</button>
          <span class="muted number">${file === null && fields.text !== "" ? `${count(fields.text.length)} characters` : ""}</span></div>
        <input ref=${chooser} class="visually-hidden" type="file" tabindex="-1" aria-label="Context file" onChange=${(event) => setFile(event.currentTarget.files[0] ?? null)} />
      </div>`}
      <div class="pair">
        <div><label for="task">Task</label><input id="task" value=${fields.task} onInput=${set("task")} placeholder="Optional" /></div>
        <div><label for="expected">Expected answer</label><input id="expected" value=${fields.expected} onInput=${set("expected")} placeholder="Optional: earns the reward" /></div>
        <div class="short"><label for="steps">Steps</label><input id="steps" type="number" min="1" max="100000" value=${fields.steps} onInput=${set("steps")} /></div>
      </div>
      ${error === null ? null : html`<p class="bad" role="alert">${error}</p>`}
      <div class="row end">${onCancel === null ? null : html`<button type="button" onClick=${onCancel}>Cancel</button>`}
        <button class="primary" disabled=${busy}>${busy ? "Starting…" : "Start"}</button></div>
    </div>
  </form>`;
}
