// The evaluations among the files, of which two can be compared.

import { html, useState } from "../../vendor/preact-htm.module.js";
import { count, score } from "../../shared/format.js";
import { link } from "../data/router.js";
import { IntervalBar } from "./interval_bar.js";

export function EvaluationList({ files }) {
  const [picked, setPicked] = useState(files.length === 2 ? files.map((file) => file.id) : []);
  const toggle = (id) => setPicked(picked.includes(id) ? picked.filter((each) => each !== id) : [...picked, id].slice(-2));
  return html`<section class="panel"><header><h2>Evaluations</h2><span class="muted">${count(files.length)}</span><span class="grow"></span>
      ${picked.length === 2 ? html`<a class="button" href=${link(["compare", ...picked])}>Compare</a>`
        : files.length > 1 ? html`<span class="muted hint">Choose two to compare them</span>` : null}</header>
    <ul class="plain rows">${files.map((file) => {
      const [all = {}] = file.scores ?? [];
      return html`<li key=${file.id} class="pickable">
        ${files.length < 2 ? null : html`<input type="checkbox" aria-label=${`Choose ${file.name} for a comparison`}
          checked=${picked.includes(file.id)} onChange=${() => toggle(file.id)} />`}
        <a class="row-link" href=${link(["evaluation", file.id])}><b class="one-line grow">${file.name}</b>
          <span class="muted number">${count(all.n)} scored</span>
          <${IntervalBar} value=${all.mean} low=${all.low} high=${all.high} />
          <b class="number">${score(all.mean)}</b>
          <span class="muted number wide">${score(all.low)} to ${score(all.high)}</span></a></li>`;
    })}</ul></section>`;
}
