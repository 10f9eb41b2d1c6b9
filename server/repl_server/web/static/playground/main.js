// The playground: asks for a key where one is needed, then shows sessions as tabs.

import { html, render, useEffect, useState } from "../vendor/preact-htm.module.js";
import { signal } from "../vendor/signals-core.module.js";
import { Failure, Loading } from "../shared/page_states.js";
import { startTheme, ThemeSwitch } from "../shared/theme_switch.js";
import { useSignal } from "../shared/use_signal.js";
import { hasKey, KeyForm, setKey } from "./api_key.js";
import { IsolationBadge } from "./isolation_badge.js";
import { PlaySession } from "./play_session.js";
import { access } from "./server_api.js";
import { SessionView } from "./session_view.js";

const tabs = signal([]);
const shown = signal(null);

function add(session) {
  tabs.value = [...tabs.value, session];
  shown.value = session;
}

function remove(session) {
  session.close();
  const place = tabs.value.indexOf(session);
  tabs.value = tabs.value.filter((each) => each !== session);
  if (shown.value === session) shown.value = tabs.value[Math.max(0, place - 1)] ?? null;
}

function tabId(session) {
  return `tab-${session.title}`;
}

function Tab({ session }) {
  const busy = useSignal(session.busy);
  const state = useSignal(session.connection.state);
  const current = useSignal(shown) === session;
  return html`<div class=${current ? "tab current" : "tab"}>
    <button type="button" role="tab" id=${tabId(session)} aria-selected=${current} onClick=${() => { shown.value = session; }}>
      <span class=${`dot ${state === "open" || state === "unopened" ? (busy === null ? "good" : "busy") : "bad"}`} aria-hidden="true"></span>${session.title}</button>
    <button type="button" class="quiet" aria-label=${`Close ${session.title}`} title="End this session" onClick=${() => remove(session)}>×</button>
  </div>`;
}

function Tabs() {
  const sessions = useSignal(tabs);
  if (sessions.length < 2) return null;
  // The buttons that close sessions stand between the tabs, and a list of tabs has no other children.
  return html`<nav class="tabs" aria-label="Sessions">
    <div role="tablist" aria-label="Sessions" aria-owns=${sessions.map(tabId).join(" ")}></div>
    ${sessions.map((each) => html`<${Tab} key=${each.title} session=${each} />`)}</nav>`;
}

function Header({ onForget }) {
  const session = useSignal(shown);
  return html`<header class="top">
    <h1><img src="web/playground/icon.svg" width="24" height="24" alt="" />repl-env <span class="muted">playground</span></h1>
    ${session === null ? null : html`<${IsolationBadge} session=${session} />`}
    <nav>${hasKey() ? html`<button type="button" class="quiet" onClick=${onForget}>Forget key</button>` : null}
      <a href="docs">Routes</a><${ThemeSwitch} /></nav>
  </header>`;
}

function Page() {
  const [state, setState] = useState({ kind: "loading" });
  const session = useSignal(shown);
  const begin = async () => {
    setState({ kind: "loading" });
    try {
      const found = await access(hasKey());
      if (found !== "ok") {
        setState({ kind: found });
        return;
      }
      add(new PlaySession("Session"));
      setState({ kind: "ready" });
    } catch (error) {
      setState({ kind: "failed", error });
    }
  };
  useEffect(() => { begin(); }, []);
  const forget = () => {
    setKey("");
    tabs.value.forEach((each) => each.close());
    tabs.value = [];
    shown.value = null;
    begin();
  };
  const restart = () => (session === null ? begin() : (remove(session), tabs.value.length === 0 && begin()));
  return html`<${Header} onForget=${forget} />
    <${Tabs} />
    <main>
      ${state.kind === "loading" ? html`<${Loading} what="Looking for the server" />` : null}
      ${state.kind === "failed" ? html`<${Failure} title="The server did not answer" error=${state.error} retry=${begin} />` : null}
      ${state.kind === "key" || state.kind === "wrong-key" ? html`<${KeyForm} onKey=${begin} wrong=${state.kind === "wrong-key"} />` : null}
      ${state.kind === "ready" && session === null ? html`<div class="state"><h2>No session is open</h2>
        <button type="button" class="primary" onClick=${begin}>Open a session</button></div>` : null}
      ${state.kind === "ready" && session !== null ? html`<${SessionView} key=${session.title} session=${session} onBranch=${add} onRestart=${restart} />` : null}
    </main>`;
}

// Frees the session at once; a page that the browser keeps would find it ended.
addEventListener("pagehide", (event) => {
  if (!event.persisted) tabs.value.forEach((each) => each.close());
});
startTheme();
render(html`<${Page} />`, document.getElementById("page"));
