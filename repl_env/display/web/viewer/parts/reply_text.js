// A sampled reply: prose as it is, blocks of code in colours.

import { html } from "../../vendor/preact-htm.module.js";
import { asText } from "../../shared/format.js";
import { LongText, PythonCode } from "../../shared/long_text.js";

const CODE = new Set(["", "python", "py", "repl", "python3", "tool_code"]);
const FENCE = /^ {0,3}(`{3,}|~{3,})([^\n`]*)$/;

// [{ code: language or null, text }], whose texts and fences are the reply. For colours alone: which
// block runs is decided where the code is run.
export function replyParts(text) {
  const parts = [];
  let lines = [];
  let fence = null;
  const close = (code) => {
    if (lines.length > 0) parts.push({ code, text: lines.join("\n") });
    lines = [];
  };
  for (const line of text.split("\n")) {
    const found = FENCE.exec(line);
    if (fence === null && found !== null) {
      close(null);
      fence = { mark: found[1], code: found[2].trim() };
    } else if (fence !== null && found !== null && found[1].startsWith(fence.mark) && found[2].trim() === "") {
      close(fence.code);
      fence = null;
    } else {
      lines.push(line);
    }
  }
  close(fence === null ? null : fence.code);
  return parts;
}

export function ReplyText({ value }) {
  const text = asText(value);
  if (text.trim() === "") return html`<p class="muted">The reply is empty.</p>`;
  return html`<div class="reply">${replyParts(text).map(({ code, text: part }, index) => {
    if (part.trim() === "" && code === null) return null;
    const python = code !== null && CODE.has(code.split(/\s/)[0].toLowerCase());
    return python ? html`<${PythonCode} key=${index} value=${part} />`
      : html`<${LongText} key=${index} value=${code === null ? part.trim() : part} kind=${code === null ? "text-block prose" : "code-block"} />`;
  })}</div>`;
}
