// How the episode ended: the answer, and the parts of its reward.

import { html } from "../vendor/preact-htm.module.js";
import { score } from "../shared/format.js";
import { LongText } from "../shared/long_text.js";

const REASONS = {
  answer: "The code submitted an answer.",
  max_iterations: "The steps are used up.",
  budget: "The budget is used up.",
};

export function OutcomeView({ observation, scored, onFollowUp, onRestart }) {
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
      <div class="row"><button type="button" class="primary" onClick=${onFollowUp}>New task, same session</button>
        <button type="button" onClick=${onRestart}>Start over</button></div>
    </div>
  </section>`;
}
