// Texts of any length: the beginning, and a button for more; of outputs with many lines the first and
// the last. Control characters are shown, colours of terminals left out.

import { html, useState } from "../vendor/preact-htm.module.js";
import { asText, count } from "./format.js";
import { highlightPython } from "./python_highlight.js";

const PAGE = 20_000; // characters; more of them at once would make a frame late
const HIGHLIGHTED = 100_000; // longer code is shown plain
const MOST_LINES = 100; // of an output that is shown whole
const [FIRST_LINES, LAST_LINES] = [40, 20]; // of one that is folded

const TERMINAL = /\u001b\[[0-9;?]*[ -/]*[@-~]|\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)/g;
const CONTROL = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/g;
// Marks that turn the direction of text could show code in another order than it runs.
const DIRECTION = /[\u202a-\u202e\u2066-\u2069]/g;

export function printable(value) {
  return asText(value)
    .replace(TERMINAL, "")
    .replace(/\r\n/g, "\n")
    .replace(CONTROL, (sign) => String.fromCharCode(0x2400 + (sign === "\u007f" ? 0x21 : sign.charCodeAt(0))))
    .replace(DIRECTION, (sign) => `⟨U+${sign.charCodeAt(0).toString(16).toUpperCase()}⟩`);
}

function useShownPart(value) {
  const text = asText(value);
  const [shown, setShown] = useState(PAGE);
  const more = text.length > shown
    ? html`<button type="button" class="small" onClick=${() => setShown(shown * 4)}>
        Show more (${count(text.length - shown)} characters hidden)</button>`
    : null;
  return [printable(text.slice(0, shown)), more];
}

// The lines of a text; null if there are few.
function manyLines(text) {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines.length > MOST_LINES ? lines : null;
}

function Block({ value, kind }) {
  const [text, more] = useShownPart(value);
  return html`<div><pre class=${kind} tabindex=${kind !== "text-block" || text.length > 2000 ? 0 : undefined}>${text}</pre>${more}</div>`;
}

// The first and the last lines, or the last alone of a text that is `growing`.
function Folded({ lines, kind, growing, onOpen }) {
  const first = growing ? 0 : FIRST_LINES;
  const hidden = lines.length - first - LAST_LINES;
  const [from, to] = [lines.slice(0, first), lines.slice(-LAST_LINES)].map((each) => each.join("\n"));
  return html`<div class="folded">${growing ? null : html`<${Block} value=${from} kind=${kind} />`}
    <button type="button" class="small" aria-expanded="false" onClick=${onOpen}>Show all ${count(lines.length)} lines (${count(hidden)} hidden)</button>
    <${Block} value=${to} kind=${kind} /></div>`;
}

// `kind`: the class of the block, "text-block" or "output" or "output error".
export function LongText({ value, kind = "text-block", growing = false }) {
  const [open, setOpen] = useState(false);
  const lines = kind.startsWith("output") ? manyLines(asText(value)) : null;
  if (lines === null) return html`<${Block} value=${value} kind=${kind} />`;
  if (!open) return html`<${Folded} lines=${lines} kind=${kind} growing=${growing} onOpen=${() => setOpen(true)} />`;
  return html`<div class="folded"><${Block} value=${value} kind=${kind} />
    <button type="button" class="small" aria-expanded="true" onClick=${() => setOpen(false)}>Fold ${count(lines.length)} lines</button></div>`;
}

export function PythonCode({ value }) {
  const [text, more] = useShownPart(value);
  const pieces = text.length > HIGHLIGHTED ? [["", text]] : highlightPython(text);
  return html`<div><pre class="code-block" tabindex="0"><code>${pieces.map(([kind, piece]) =>
    (kind === "" ? piece : html`<span class=${kind}>${piece}</span>`))}</code></pre>${more}</div>`;
}
