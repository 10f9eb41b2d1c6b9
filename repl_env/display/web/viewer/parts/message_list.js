// The prompt of a turn: new messages are open, messages of earlier turns are closed. Texts
// are fetched when they are opened.

import { html, useState } from "../../vendor/preact-htm.module.js";
import { asText, count } from "../../shared/format.js";
import { LongText } from "../../shared/long_text.js";
import { Failure } from "../../shared/page_states.js";
import { promptOf } from "../data/run_tree.js";
import { useData } from "../data/use_data.js";

const FEW = 30; // earlier messages that are listed at once

function textOf(message, event) {
  if (message.place === "reply") return asText(event.completion?.text);
  const content = event.added?.[message.place]?.content;
  if (!Array.isArray(content)) return asText(content);
  return content.map((part) => (typeof part?.text === "string" ? part.text : asText(part))).join("\n");
}

function MessageText({ store, message }) {
  const { value, error } = useData(() => store.event(message.row), [message.row.at, message.row.index]);
  if (error !== null) return html`<${Failure} error=${error} />`;
  if (value === null) return html`<p class="muted">Loading…</p>`;
  return html`<${LongText} value=${textOf(message, value)} />`;
}

function Message({ store, message, fresh }) {
  const [open, setOpen] = useState(fresh);
  const sampled = message.place === "reply";
  const from = sampled ? `sampled in turn ${message.turn}` : fresh ? "injected, new" : `injected in turn ${message.turn}`;
  return html`<details class=${`message ${sampled ? "sampled" : "injected"}`} open=${open}
      onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary><b>${message.role}</b> <span class="muted">${from}</span>
      ${message.length === null ? null : html`<span class="muted number">${count(message.length)} chars</span>`}</summary>
    ${open ? html`<${MessageText} store=${store} message=${message} />` : null}
  </details>`;
}

export function MessageList({ store, turn }) {
  const [all, setAll] = useState(false);
  const messages = promptOf(turn);
  const first = messages.findIndex((message) => message.row === turn.row);
  const earlier = first < 0 ? messages : messages.slice(0, first);
  const fresh = first < 0 ? [] : messages.slice(first);
  const hidden = all ? 0 : Math.max(0, earlier.length - FEW);
  return html`<div class="messages">
    ${hidden === 0 ? null : html`<button type="button" class="small" onClick=${() => setAll(true)}>
      Show ${count(hidden)} older messages</button>`}
    ${earlier.slice(hidden).map((message) => html`<${Message} key=${`${message.row.index} ${message.place}`} store=${store} message=${message} fresh=${false} />`)}
    ${fresh.map((message) => html`<${Message} key=${`${message.row.index} ${message.place}`} store=${store} message=${message} fresh=${true} />`)}
    ${messages.length === 0 ? html`<p class="muted">No message is recorded.</p>` : null}
  </div>`;
}
