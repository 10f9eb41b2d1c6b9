// Placeholders for content that is loading, missing, or failed to load.

import { html } from "../vendor/preact-htm.module.js";

export function Loading({ what = "Loading" }) {
  return html`<div class="state" role="status"><div class="spinner"></div><p>${what}…</p></div>`;
}

export function Empty({ title, children }) {
  return html`<div class="state"><div class="mark" aria-hidden="true">∅</div><h2>${title}</h2><div>${children}</div></div>`;
}

export function Failure({ title = "This did not work", error, retry }) {
  const text = error instanceof Error ? error.message : String(error);
  return html`<div class="state error" role="alert"><div class="mark" aria-hidden="true">!</div>
    <h2>${title}</h2><p>${text}</p>
    ${retry === undefined ? null : html`<button type="button" onClick=${retry}>Try again</button>`}</div>`;
}
