// The playground: asks for a key where one is needed, then shows sessions as tabs. A reloaded page has
// the sessions that it had before.

import { html, render, useEffect, useState } from "../vendor/preact-htm.module.js";
import { effect, signal } from "../vendor/signals-core.module.js";
import { Failure, Loading } from "../shared/page_states.js";
import { startTheme, ThemeSwitch } from "../shared/theme_switch.js";
import { useSignal } from "../shared/use_signal.js";
import { hasKey, KeyForm, setKey } from "./api_key.js";
import { IsolationBadge } from "./isolation_badge.js";
import { claim, listEarlier, load, openBefore, rememberOpen, remove as removeWork } from "./kept_work.js";
import { merged, PlaySession } from "./play_session.js";
import { access } from "./server_api.js";
import { SessionView } from "./session_view.js";

const RELOADED = "The page was loaded again while an episode was starting, and does not know its session.";
const ELSEWHERE = "Another page has this session. These are its cells as they were when this page was opened.";
const KEPT = "These cells were kept by this browser. Their session belonged to a page that was closed.";

const tabs = signal([]);
const shown = signal(null);
const known = signal(false); // the tabs of the page before a reload are here again

function add(session) {
  tabs.value = [...tabs.value, session];
  shown.value = session;
}

function freeTitle(titleOf) {
  const titles = new Set(tabs.value.map(({ title }) => title));
  let number = 1;
  while (titles.has(titleOf(number))) number += 1;
  return titleOf(number);
}

function newTitle() {
  return freeTitle((number) => (number === 1 ? "Session" : `Session ${number}`));
}

// Resolves to a session with the cells that the browser kept, which goes on if it has a token; null
// without such cells.
async function restored({ work, title, token = null, ending = KEPT, draft, undoing = null, coming = null }) {
  const mine = await claim(work);
  const kept = await load(work);
  if (kept === null) return null;
  const session = new PlaySession(title);
  const cells = coming === null ? kept.cells : merged(kept.cells, coming);
  session.restore({ ...kept.work, draft: draft ?? kept.work.draft }, cells);
  session.undoing.value = undoing;
  if (!mine) session.becomeCopy();
  if (mine && token !== null) session.resume(token);
  else session.end(mine ? ending ?? RELOADED : ELSEWHERE);
  return session;
}

async function openEarlier(id, instead) {
  const session = await restored({ work: id, title: newTitle() });
  if (session !== null) replace(instead, session);
}

async function restoreAll() {
  for (const entry of openBefore()) {
    const session = await restored(entry);
    if (session === null) continue;
    tabs.value = [...tabs.value, session];
    if (shown.value === null || entry.shown) shown.value = session;
  }
  known.value = true;
}

// A session without cells gives its tab to another one.
function replace(session, other) {
  if (session.work.value === null || session.cells.value.length === 0) remove(session);
  add(other);
}

function remove(session) {
  session.close();
  const place = tabs.value.indexOf(session);
  tabs.value = tabs.value.filter((each) => each !== session);
  if (shown.value === session) shown.value = tabs.value[Math.max(0, place - 1)] ?? null;
}

function tabId(session) {
  return `tab-${session.title.replaceAll(" ", "-")}`;
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

function Header({ loading, onForget }) {
  const session = useSignal(shown);
  return html`<header class="top">
    <h1><img src="web/playground/icon.svg" width="24" height="24" alt="" />repl-env <span class="muted">playground</span></h1>
    ${session === null ? null : html`<${IsolationBadge} session=${session} />`}
    <nav>${hasKey() ? html`<button type="button" class="quiet" disabled=${loading} onClick=${onForget}>Forget key</button>` : null}
      <a href="docs">Routes</a><${ThemeSwitch} /></nav>
  </header>`;
}

function ForgetForm({ onForget, onCancel }) {
  return html`<section class="panel key-form" aria-label="Forget the key"><div class="body">
    <h2>Forget the key?</h2>
    <p>The sessions of this page end, and all cells that this browser keeps for the playground are removed, except those of other open pages.</p>
    <div class="row"><button type="button" class="primary" onClick=${onForget}>Forget key and cells</button>
      <button type="button" onClick=${onCancel}>Cancel</button></div></div></section>`;
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
      if (tabs.value.length === 0) await restoreAll();
      if (tabs.value.length === 0) add(new PlaySession(newTitle()));
      setState({ kind: "ready" });
    } catch (error) {
      setState({ kind: "failed", error });
    }
  };
  useEffect(() => { begin(); }, []);
  const forget = async () => {
    setKey("");
    const works = tabs.value.map((each) => each.work.value?.id);
    const forgotten = tabs.value;
    tabs.value = [];
    shown.value = null;
    for (const session of forgotten) {
      session.close();
      session.work.value = null; // so that a cell which ends by this is not kept again
    }
    for (const id of [...works, ...(await listEarlier()).map((each) => each.id)]) if (id !== undefined) await removeWork(id);
    begin();
  };
  const asked = () => (tabs.value.some((each) => each.work.value !== null) ? setState({ kind: "forget" }) : forget());
  return html`<${Header} loading=${state.kind === "loading"} onForget=${asked} />
    <${Tabs} />
    <main>
      ${state.kind === "loading" ? html`<${Loading} what="Looking for the server" />` : null}
      ${state.kind === "failed" ? html`<${Failure} title="The server did not answer" error=${state.error} retry=${begin} />` : null}
      ${state.kind === "key" || state.kind === "wrong-key" ? html`<${KeyForm} onKey=${begin} wrong=${state.kind === "wrong-key"} />` : null}
      ${state.kind === "forget" ? html`<${ForgetForm} onForget=${forget} onCancel=${() => setState({ kind: "ready" })} />` : null}
      ${state.kind === "ready" && session === null ? html`<div class="state"><h2>No session is open</h2>
        <button type="button" class="primary" onClick=${begin}>Open a session</button></div>` : null}
      ${state.kind === "ready" && session !== null ? html`<${SessionView} key=${session.title} session=${session}
        onBranch=${async () => { const other = await session.branch(freeTitle((number) => `${session.title}.${number}`)); if (other !== null) add(other); }}
        onEarlier=${(id) => openEarlier(id, session)}
        onAgain=${async () => { const other = await session.again(newTitle()); if (other !== null) add(other); }}
        onRestart=${() => replace(session, new PlaySession(newTitle()))} />` : null}
    </main>`;
}

addEventListener("pagehide", () => tabs.value.forEach((each) => each.leave()));
// The browser asks before a page is left whose cells it could not keep.
addEventListener("beforeunload", (event) => {
  if (tabs.value.some((each) => each.trouble.value !== null)) event.preventDefault();
});
effect(() => {
  const entries = tabs.value.map((each) => ({ ...each.entry(), shown: each === shown.value }));
  if (known.value) rememberOpen(entries.filter(({ work }) => work !== undefined));
});
startTheme();
render(html`<${Page} />`, document.getElementById("page"));
