// The episode as files: a recording that `repl_env.env.recordings.Recording.from_json` reads, a Jupyter
// notebook with its outputs, and a Python file. Cells that were undone are left out, so that a replay
// ends in the same state.

import { html } from "../vendor/preact-htm.module.js";
import { outputParts, sandboxedPage } from "../shared/display_view.js";
import { asText } from "../shared/format.js";
import { save } from "./server_api.js";

const LONGEST_CONTEXT = 100_000; // characters of a context in a Python file

function wire({ reward, done, ...rest }) {
  return { ...rest, reward, done };
}

export function recordingText({ reset, first, steps }) {
  return JSON.stringify({
    reset,
    actions: steps.map(({ code }) => ({ code })),
    observations: [first, ...steps.map(({ observation }) => observation)].map(wire),
    timeouts: steps.map(() => null),
  });
}

function pythonText(text) {
  const escaped = text.replace(/[\\"\u0000-\u001f\u007f\u2028\u2029]/g, (sign) => (
    sign === "\n" ? "\\n" : sign === "\\" || sign === '"' ? `\\${sign}` : `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`));
  return `"${escaped}"`;
}

// Python that sets `context` as the session had it.
function contextCode({ reset, first }) {
  if (typeof reset.context === "string" && reset.context.length <= LONGEST_CONTEXT) return `context = ${pythonText(reset.context)}`;
  if (!first.context_length) return `context = ""`;
  return `# The session's context had ${first.context_length} characters or bytes: read it from its file.\ncontext = open("context.txt").read()`;
}

const HEAD = "Cells of a repl-env session. FINAL(...), llm_query(...) and the like are functions of such sessions.";

function played(session) {
  return session.cells.value.filter(({ undone }) => !undone);
}

// One cell that is no Python would make the whole file invalid.
function isNoPython({ observation }) {
  return observation !== null && observation.metadata.error_kind === "syntax";
}

function commented(code) {
  return code.split("\n").map((line) => `# ${line}`).join("\n");
}

export function pythonFile(session) {
  const parts = [`# ${HEAD}`, contextCode(session.work.value)];
  for (const each of played(session)) {
    if (each.kind === "cell") parts.push(`# %%\n${isNoPython(each) ? commented(each.code) : each.code}`);
    else parts.push(`# %% new task: ${JSON.stringify(each.task.prompt)}`);
  }
  return `${parts.join("\n\n")}\n`;
}

function stream(name, text) {
  return { output_type: "stream", name, text };
}

function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll('"', "&quot;").replaceAll("<", "&lt;");
}

// The forms of a display that a notebook may show: HTML in a frame without rights, and no SVG, which
// some programs make a part of their page.
function bundle({ text, forms }) {
  const data = { "text/plain": asText(text) };
  for (const [form, content] of Object.entries(forms ?? {})) {
    if (typeof content !== "string") continue;
    if (form === "text/html") data[form] = `<iframe sandbox title="displayed" width="100%" height="300" srcdoc="${escaped(sandboxedPage(content))}"></iframe>`;
    else if (form === "text/latex") data[form] = content;
  }
  return data;
}

function outputs(cell, number) {
  if (cell.observation === null) {
    const live = (cell.live?.value ?? []).map(({ stream: name, text }) => stream(name, text));
    return [...live, stream("stderr", `${cell.error?.message ?? "No result."}\n`)];
  }
  const { result } = cell.observation;
  const shown = outputParts(result).map((part) => {
    if (part.text !== undefined) return stream("stdout", part.text);
    if (part.display !== undefined) return { output_type: "display_data", metadata: {}, data: bundle(part.display) };
    return { output_type: "execute_result", execution_count: number, metadata: {}, data: bundle(part.value ?? { text: part.ending }) };
  });
  const figures = (result.figures ?? []).map((png) => ({ output_type: "display_data", metadata: {}, data: { "image/png": png, "text/plain": "figure" } }));
  return [...shown, ...(result.stderr === "" ? [] : [stream("stderr", result.stderr)]), ...figures];
}

export function notebookFile(session) {
  let number = 0;
  const code = (id, source, execution_count, shown) => ({ id, cell_type: "code", metadata: {}, source, execution_count, outputs: shown });
  const cells = [{ id: "head", cell_type: "markdown", metadata: {}, source: HEAD }, code("context", contextCode(session.work.value), null, [])];
  for (const each of played(session)) {
    if (each.kind === "task") cells.push({ id: each.id, cell_type: "raw", metadata: {}, source: `new task: ${each.task.prompt}` });
    else cells.push(code(each.id, each.code, number += 1, outputs(each, number)));
  }
  return JSON.stringify({
    nbformat: 4, nbformat_minor: 5, cells,
    metadata: { kernelspec: { name: "python3", display_name: "Python 3", language: "python" }, language_info: { name: "python" } },
  }, null, 1);
}

const FILES = [
  ["notebook", "ipynb", "application/x-ipynb+json", notebookFile],
  ["Python file", "py", "text/x-python", pythonFile],
  ["recording", "json", "application/json", (session) => recordingText(session.recording)],
];

export function Downloads({ session }) {
  const download = ([, ending, type, text]) => {
    const time = new Date().toISOString().slice(0, 19).replaceAll(":", "-");
    save(new Blob([text(session)], { type }), `episode-${time}.${ending}`);
  };
  return html`<div class="row downloads" role="group" aria-label="Download"><span class="muted">Download</span>
    ${FILES.map((each) => html`<button type="button" class="small" aria-label=${`Download ${each[0]}`} onClick=${() => download(each)}>${each[0]}</button>`)}</div>`;
}
