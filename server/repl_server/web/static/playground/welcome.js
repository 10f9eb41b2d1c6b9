// Before a session: what this page is, an example, and the work that the browser has kept.

import { html, useEffect, useState } from "../vendor/preact-htm.module.js";
import { moment, oneLine, plural } from "../shared/format.js";
import { useSignal } from "../shared/use_signal.js";
import { listEarlier, releasedCount, remove } from "./kept_work.js";

const CONTEXT = "date,city,visitors\n2024-05-01,Lisbon,412\n2024-05-01,Porto,230\n2024-05-02,Lisbon,388\n2024-05-02,Porto,301\n";
const TASK = { prompt: "Which city had more visitors?", scored: true };
const RESET = { context: CONTEXT, task_prompt: TASK.prompt, expected_answer: "Lisbon", max_iterations: 200 };
const CELLS = [
  "print(context)",
  `import collections, csv, io
totals = collections.Counter()
for row in csv.DictReader(io.StringIO(context)):
    totals[row["city"]] += int(row["visitors"])
totals`,
];
const NEXT = "FINAL(max(totals, key=totals.get))";

async function tryExample(session) {
  await session.start(async () => ({ reset: RESET, uploaded: null }), TASK);
  if (session.last.value === null) return; // the notice tells why
  CELLS.forEach((code) => session.run(code));
  session.draft.value = NEXT;
}

export function Welcome({ session }) {
  const busy = useSignal(session.busy);
  return html`<section class="panel welcome" aria-labelledby="welcome"><div class="body">
    <h2 id="welcome">A Python session, as a language model has it</h2>
    <p>A session is a Python interpreter of its own on this server. Models run code in sessions to work on a context and a task.
      Here you write the cells: variables and files stay from cell to cell, Undo takes a cell back,
      and <code>FINAL(answer)</code> ends the episode with an answer. A badge says how the session is isolated.</p>
    <div class="row"><button type="button" class="primary" disabled=${busy !== null} onClick=${() => tryExample(session)}>Try an example</button>
      <span class="muted">Starts a session with a small table and a question, and runs two cells.</span></div>
  </div></section>`;
}

// `onOpen(id)` shows a work.
export function EarlierWork({ onOpen }) {
  const [works, setWorks] = useState([]);
  const refresh = () => listEarlier().then((all) => setWorks(all.filter(({ count }) => count > 0)));
  const released = useSignal(releasedCount);
  useEffect(() => { refresh(); }, [released]);
  if (works.length === 0) return null;
  return html`<section class="panel earlier" aria-labelledby="earlier"><header><h2 id="earlier">Earlier work</h2>
      <span class="muted">kept by this browser</span></header>
    <div class="body"><ul>${works.map(({ id, title, changed, count, task, began }) => {
      const name = `${task?.prompt || began?.prompt ? oneLine(task?.prompt || began.prompt, 80) : title}`;
      return html`<li key=${id}><span class="one-line">${name}</span>
        <span class="muted number">${plural(count, "cell")} · ${moment(changed / 1000)}</span>
        <button type="button" class="small" aria-label=${`Open ${name}`} onClick=${() => onOpen(id)}>Open</button>
        <button type="button" class="small quiet" aria-label=${`Remove ${name}`} onClick=${() => remove(id).then(refresh)}>Remove</button></li>`;
    })}</ul></div></section>`;
}
