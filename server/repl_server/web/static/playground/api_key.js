// The API key of this tab. The key travels in headers only, never in an address, and stays in the
// tab's session storage, which the browser clears with the tab.

import { html, useState } from "../vendor/preact-htm.module.js";

const STORED = "repl-env-api-key";
const SUBPROTOCOL = "repl-env.v1";
const KEY_SUBPROTOCOL = "repl-env.key.";

let key = stored();

function stored() {
  try {
    return sessionStorage.getItem(STORED);
  } catch {
    return null; // a frame of another site may have no storage
  }
}

export function setKey(given) {
  key = given === "" ? null : given;
  try {
    if (key === null) sessionStorage.removeItem(STORED);
    else sessionStorage.setItem(STORED, key);
  } catch {
    // as above: the key lasts until the page is left
  }
}

export function hasKey() {
  return key !== null;
}

export function keyHeaders() {
  return key === null ? {} : { "X-API-Key": key };
}

// The subprotocols of the WebSocket: browsers cannot set other headers of one.
export function socketProtocols() {
  if (key === null) return [SUBPROTOCOL];
  const bytes = String.fromCharCode(...new TextEncoder().encode(key));
  const token = btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return [SUBPROTOCOL, KEY_SUBPROTOCOL + token];
}

export function KeyForm({ onKey, wrong = false }) {
  const [text, setText] = useState("");
  const submit = (event) => {
    event.preventDefault();
    setKey(text.trim());
    onKey();
  };
  return html`<form class="panel key-form" onSubmit=${submit}>
    <div class="body">
      <h2>This server needs an API key</h2>
      ${wrong ? html`<p role="alert" class="bad">The server does not know this key.</p>` : null}
      <label for="api-key">API key</label>
      <div class="row"><input id="api-key" type="password" autocomplete="current-password" required
        spellcheck=${false} value=${text} onInput=${(event) => setText(event.currentTarget.value)} />
      <button class="primary">Continue</button></div>
      <p class="muted">The key stays in this tab and travels in a header, never in an address.</p>
    </div>
  </form>`;
}
