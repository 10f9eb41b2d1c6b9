// A text area for code, with highlighted text behind it. Tab indents; after Escape, Tab leaves the
// editor, for people who use the keyboard alone. Ctrl+C with nothing selected interrupts, as in terminals.

import { html, useEffect, useRef } from "../vendor/preact-htm.module.js";
import { highlightPython } from "../shared/python_highlight.js";

const INDENT = "    ";
const HIGHLIGHTED = 50_000; // characters

// Keeps the browser's own undo, which setting the value would not.
function insert(area, text) {
  if (!document.execCommand("insertText", false, text)) area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
}

function lineBefore(area) {
  return area.value.slice(area.value.lastIndexOf("\n", area.selectionStart - 1) + 1, area.selectionStart);
}

function newLine(area) {
  const line = lineBefore(area);
  const indent = /^[ \t]*/.exec(line)[0];
  insert(area, `\n${indent}${line.trimEnd().endsWith(":") ? INDENT : ""}`);
}

function dedent(area) {
  const start = area.selectionStart - lineBefore(area).length;
  const spaces = /^ {1,4}/.exec(area.value.slice(start))?.[0].length ?? 0;
  const place = area.selectionStart;
  area.setSelectionRange(start, start + spaces);
  insert(area, "");
  area.setSelectionRange(Math.max(start, place - spaces), Math.max(start, place - spaces));
}

// The editor takes the focus when it appears, and whenever `asked` changes.
//
// `onRun()`, `onUndo()` and `onEarlier(step)` are called by their keys; the last two only while the
// editor is empty.
export function CodeEditor({ value, asked, onInput, onRun, onUndo, onEarlier, onStop }) {
  const leaving = useRef(false);
  const area = useRef(null);
  useEffect(() => area.current.focus({ preventScroll: true }), [asked]);
  const keyDown = (event) => {
    const area = event.currentTarget;
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if (event.isComposing) return;
    let taken = true;
    if (event.key === "Enter" && (event.shiftKey || event.ctrlKey || event.metaKey)) onRun();
    else if (event.key === "Enter" && plain) newLine(area);
    else if (event.key.toLowerCase() === "c" && event.ctrlKey && area.selectionStart === area.selectionEnd) onStop();
    else if (event.key === "Tab" && plain && !leaving.current) event.shiftKey ? dedent(area) : insert(area, INDENT);
    else if (event.key.toLowerCase() === "z" && (event.ctrlKey || event.metaKey) && !event.shiftKey && area.value === "") onUndo();
    else if ((event.key === "ArrowUp" || event.key === "ArrowDown") && plain && onEarlier(event.key === "ArrowUp" ? 1 : -1, area)) taken = true;
    else taken = false;
    leaving.current = event.key === "Escape" || (leaving.current && event.key === "Shift");
    if (taken) event.preventDefault();
  };
  const pieces = value.length > HIGHLIGHTED ? [["", value]] : highlightPython(value);
  return html`<div class="editor">
    <pre class="code-block" aria-hidden="true"><code>${pieces.map(([kind, text]) =>
      (kind === "" ? text : html`<span class=${kind}>${text}</span>`))}${"\n"}</code></pre>
    <textarea ref=${area} aria-label="Python code" aria-describedby="editor-keys" spellcheck=${false} autocapitalize="off" autocomplete="off"
      autocorrect="off" placeholder="Python code" value=${value} onInput=${(event) => onInput(event.currentTarget.value)} onKeyDown=${keyDown}></textarea>
  </div>`;
}
