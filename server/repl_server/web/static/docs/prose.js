// A description as paragraphs. Text between backticks is code; nothing else is markup.

import { html } from "../vendor/preact-htm.module.js";

function pieces(text) {
  return text.split(/(`[^`\n]+`)/).map((piece) =>
    (piece.length > 2 && piece.startsWith("`") && piece.endsWith("`")
      ? html`<code>${piece.slice(1, -1)}</code>` : piece));
}

export function Prose({ text }) {
  const paragraphs = String(text ?? "").split(/\n\s*\n/).filter((each) => each.trim() !== "");
  return paragraphs.map((each) => html`<p class="prose">${pieces(each)}</p>`);
}
