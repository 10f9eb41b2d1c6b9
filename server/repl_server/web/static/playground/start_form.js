// The form that starts an episode: a context, a task, and the answer that earns a reward.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.module.js";
import { bytes as size, plural } from "../shared/format.js";
import { printable } from "../shared/long_text.js";
import { canUpload, uploadContext } from "./server_api.js";

const UPLOADED = 512 * 1024; // bytes; smaller contexts go with the reset
const STEPS = 200;
const PREVIEWED = 4096; // bytes
const PREVIEW_LINES = 10;

// The beginning of a file as text, or its bytes in hexadecimal.
async function previewOf(file) {
  const bytes = new Uint8Array(await file.slice(0, PREVIEWED).arrayBuffer());
  const whole = file.size <= PREVIEWED;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: !whole });
    const lines = text.split("\n");
    const cut = !whole || lines.length > PREVIEW_LINES + 1;
    return { type: whole ? "str" : "str, if all of it is UTF-8", text: `${lines.slice(0, PREVIEW_LINES).join("\n")}${cut ? "\n…" : ""}` };
  } catch {
    const shown = Array.from(bytes.slice(0, 64), (byte) => byte.toString(16).padStart(2, "0")).join(" ");
    return { type: "bytes", text: file.size > 64 ? `${shown} …` : shown };
  }
}

function FilePreview({ file }) {
  const [preview, setPreview] = useState(null);
  useEffect(() => {
    setPreview(null);
    previewOf(file).then(setPreview, (error) => setPreview({ type: "unreadable", text: error.message }));
  }, [file]);
  if (preview === null) return null;
  return html`<div class="preview"><p class="muted"><code>context</code> begins with this (${preview.type}):</p>
    <pre class="code-block" tabindex="0" aria-label="Beginning of the context">${printable(preview.text)}</pre></div>`;
}

function TextFacts({ text }) {
  if (text === "") return null;
  return html`<span class="muted number"><code>context</code>: str, ${plural(text.length, "character")}, ${plural(text.split("\n").length - (text.endsWith("\n") ? 1 : 0), "line")}</span>`;
}

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
    const context = { sha256, type: text === null ? "bytes" : "text" };
    return { reset: { uploads: { context } }, uploaded: new Blob([bytes]) };
  }
  if (text !== null) return { reset: { context: text } };
  const letters = Array.from(new Uint8Array(bytes), (byte) => String.fromCharCode(byte)).join("");
  return { reset: { context: { $bytes: btoa(letters) } } };
}

export function StartForm({ onStart, onCancel = null, followsUp = false, busy }) {
  const [fields, setFields] = useState({ text: "", task: "", expected: "", steps: String(STEPS) });
  const [file, setFile] = useState(null);
  const [over, setOver] = useState(false);
  const [error, setError] = useState(null);
  const chooser = useRef(null);
  const taskField = useRef(null);
  useEffect(() => {
    if (followsUp) taskField.current.focus();
  }, []);
  const set = (name) => (event) => setFields({ ...fields, [name]: event.currentTarget.value });
  const submit = async (event) => {
    event.preventDefault();
    setError(null);
    try {
      const bytes = file === null ? new TextEncoder().encode(fields.text) : await file.arrayBuffer();
      const task = { prompt: fields.task.trim(), scored: fields.expected !== "" };
      await onStart(async () => {
        const { reset = {}, uploaded = null } = followsUp || bytes.byteLength === 0 ? {} : await contextArguments(bytes);
        return { reset: {
          ...reset,
          ...(task.prompt === "" ? {} : { task_prompt: task.prompt }),
          ...(task.scored ? { expected_answer: fields.expected } : {}),
          max_iterations: Math.max(1, Math.round(Number(fields.steps)) || STEPS),
        }, uploaded };
      }, task);
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
        : html`<span class="muted">All fields are optional.</span>`}</header>
    <div class="body">
      ${followsUp ? null : html`<div class=${over ? "drop over" : "drop"} onDragOver=${(event) => { event.preventDefault(); setOver(true); }}
          onDragLeave=${() => setOver(false)} onDrop=${dropped}>
        <label for="context">Context <span class="muted">– the variable <code>context</code>; paste text, or drop a file</span></label>
        ${file === null
          ? html`<textarea id="context" rows="6" spellcheck=${false} value=${fields.text} onInput=${set("text")} placeholder="Optional"></textarea>`
          : html`<p class="chosen" id="context"><strong>${file.name}</strong> <span class="muted">${size(file.size)}</span>
              <button type="button" class="small" onClick=${() => setFile(null)}>Remove</button></p>`}
        <div class="row"><button type="button" class="small" onClick=${() => chooser.current.click()}>Choose a file</button>
          ${file === null ? html`<${TextFacts} text=${fields.text} />` : null}</div>
        ${file === null ? null : html`<${FilePreview} file=${file} />`}
        <input ref=${chooser} class="visually-hidden" type="file" tabindex="-1" aria-label="Context file" onChange=${(event) => setFile(event.currentTarget.files[0] ?? null)} />
      </div>`}
      <div class="pair">
        <div><label for="task">Task</label><input id="task" ref=${taskField} value=${fields.task} onInput=${set("task")} placeholder="Optional" /></div>
        <div><label for="expected">Expected answer</label><input id="expected" value=${fields.expected} onInput=${set("expected")} placeholder="Optional: earns the reward" /></div>
        <div class="short"><label for="steps">Steps</label><input id="steps" type="number" min="1" max="100000" value=${fields.steps} onInput=${set("steps")} /></div>
      </div>
      ${error === null ? null : html`<p class="bad" role="alert">${error}</p>`}
      <div class="row end">${onCancel === null ? null : html`<button type="button" onClick=${onCancel}>Cancel</button>`}
        <button class="primary" disabled=${busy}>${busy ? "Starting…" : "Start"}</button></div>
    </div>
  </form>`;
}
