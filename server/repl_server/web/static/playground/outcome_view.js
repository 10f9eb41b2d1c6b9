// How the episode ended: the answer and the parts of its reward; or without an end, because the page
// has no session any more.

import { html } from "../vendor/preact-htm.module.js";
import { score } from "../shared/format.js";
import { LongText, PythonCode } from "../shared/long_text.js";
import { useSignal } from "../shared/use_signal.js";
import { Downloads } from "./downloads.js";

const REASONS = {
  answer: "The code submitted an answer.",
  max_iterations: "The steps are used up.",
  budget: "The budget is used up.",
};

export function OutcomeView({ observation, scored, ended, onFollowUp, onRestart }) {
  const { metadata, reward } = observation;
  const parts = Object.entries(metadata.reward_components ?? {});
  return html`<section class="panel outcome" aria-label="Outcome">
    <header><h2>${metadata.final_answer === null ? "No answer" : "Answer"}</h2>
      <span class=${`badge ${reward > 0 ? "good" : reward < 0 ? "bad" : ""}`}>reward ${score(reward)}</span>
      <span class="muted">${REASONS[metadata.stop_reason] ?? ""}</span></header>
    <div class="body">
      ${metadata.final_answer === null ? null : html`<${LongText} value=${metadata.final_answer} kind="text-block answer" />`}
      ${parts.length === 0 ? null : html`<table><thead><tr><th scope="col">Component</th><th scope="col" class="number">Reward</th></tr></thead>
        <tbody>${parts.map(([name, value]) => html`<tr><td>${name}</td><td class="number">${score(value)}</td></tr>`)}
        <tr class="sum"><td>Task reward</td><td class="number">${score(metadata.task_reward)}</td></tr></tbody></table>`}
      ${scored ? null : html`<p class="muted">No expected answer was given, so no answer earns a task reward.</p>`}
      ${metadata.mask ? html`<p class="muted">An infrastructure error touched this episode: trainers mask it.</p>` : null}
      ${ended ? null : html`<div class="row"><button type="button" class="primary" onClick=${onFollowUp}>New task, same session</button>
        <button type="button" onClick=${onRestart}>Start over</button></div>`}
    </div>
  </section>`;
}

// Below the cells of a session that ended, or whose episode the server lost (`lost`).
export function EndedPanel({ session, lost, onAgain, onRestart }) {
  const busy = useSignal(session.busy);
  const draft = useSignal(session.draft);
  const { ending, taken } = session.connection;
  const undone = session.cells.value.every((each) => each.kind !== "cell" || each.undone);
  return html`<section class="panel ended" aria-label="Session ended"><div class="body">
      <p role="alert"><strong>${lost ? "The server has lost this episode." : ending}</strong></p>
      <p class="muted">The cells above are what this page received. Variables and files of the session are not part of them.</p>
      ${draft.trim() === "" ? null : html`<div><p class="muted">Code in the editor, not run:</p><${PythonCode} value=${draft} /></div>`}
      <div class="row"><button type="button" class="primary" disabled=${busy !== null || undone} onClick=${onAgain}>${busy === null ? "Run these again in a new session" : "Starting…"}</button>
        ${taken ? html`<button type="button" disabled=${busy !== null} onClick=${() => session.takeOver()}>Continue here</button>` : null}
        <button type="button" onClick=${onRestart}>${lost ? "Start over" : "Open another session"}</button></div>
      <${Downloads} session=${session} />
    </div></section>`;
}
