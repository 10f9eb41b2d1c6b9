// Two evaluations of the same tasks: the difference of the means, and the tasks that changed.

import { html } from "../../vendor/preact-htm.module.js";
import { count, isNumber, oneLine, plural, score, signed } from "../../shared/format.js";
import { Empty, Failure, Loading } from "../../shared/page_states.js";
import { link } from "../data/router.js";
import { useData, useListing } from "../data/use_data.js";
import { IntervalBar } from "../parts/interval_bar.js";
import { Fact, Score, WideTable } from "../parts/labels.js";

const KINDS = [["", "All changes", () => true], ["lost", "Lost", (change) => change.after < change.before],
  ["gained", "Gained", (change) => change.after > change.before]];

function verdict({ n, low, high }) {
  if (n === 0) return "No task has a score in both.";
  if (!isNumber(low)) return "There are too few tasks for an interval.";
  if (low > 0) return "The second evaluation scores higher: the interval does not include 0.";
  if (high < 0) return "The second evaluation scores lower: the interval does not include 0.";
  return "The interval includes 0: the difference may be chance.";
}

export function ComparisonPage({ source, parts: [before = "", after = ""], query }) {
  const { value, error } = useData(() => source.comparison(before, after), [source, before, after]);
  const listing = useListing(source);
  if (error !== null) return html`<${Failure} title="The evaluations cannot be compared" error=${error} />`;
  if (value === null) return html`<${Loading} what="Comparing" />`;
  const name = (id) => listing.value?.files.find((file) => file.id === id)?.name ?? `file ${id}`;
  const [kind, , wanted] = KINDS.find(([each]) => each === (query.get("kind") ?? "")) ?? KINDS[0];
  const shown = value.changes.filter(wanted);
  const [all, ...kinds] = value.differences.length > 0 ? value.differences : [{ n: 0 }];
  const reach = Math.max(0.05, ...value.differences.flatMap((each) => [each.low, each.high, each.mean]).filter(isNumber).map(Math.abs)) * 1.1;
  return html`<div class="comparison">
    <div class="title"><h1>Comparison</h1><a class="button" href=${link(["compare", after, before])}>⇄ Swap</a></div>
    <section class="panel"><div class="body verdict">
      <${WideTable} label="Means" kind="scores"><thead><tr><td></td><th>evaluation</th><th>mean</th></tr></thead><tbody>
        <tr><td class="muted">first</td><td><a href=${link(["evaluation", before])}>${name(before)}</a></td><td class="number">${score(all.before)}</td></tr>
        <tr><td class="muted">second</td><td><a href=${link(["evaluation", after])}>${name(after)}</a></td><td class="number">${score(all.after)}</td></tr></tbody><//>
      <div class="difference"><span class="muted">difference</span> <b class="number large">${signed(all.mean)}</b>
        <${IntervalBar} value=${all.mean} low=${all.low} high=${all.high} from=${-reach} to=${reach} zero=${0} />
        <span class="number">95 % interval ${signed(all.low)} to ${signed(all.high)}</span></div>
      <p>${verdict(all)}</p>
      ${kinds.length < 2 ? null : html`<${WideTable} label="Kinds of tasks" kind="scores"><thead><tr><th>kind</th><th>n</th><th>difference</th><th>95 % interval</th><td></td></tr></thead>
        <tbody>${kinds.map((each) => html`<tr key=${each.name}><td>${each.name}</td><td class="number">${count(each.n)}</td>
          <td class="number"><b>${signed(each.mean)}</b></td><td class="number">${signed(each.low)} to ${signed(each.high)}</td>
          <td><${IntervalBar} value=${each.mean} low=${each.low} high=${each.high} from=${-reach} to=${reach} zero=${0} /></td></tr>`)}</tbody><//>`}
      <dl class="facts"><${Fact} name="tasks in both">${count(all.n)}<//><${Fact} name="changed">${count(value.changes.length)}<//>
        ${value.unequal.length === 0 ? null : html`<${Fact} name="of another question, left out">${count(value.unequal.length)}<//>`}
        ${value.only_before.length === 0 ? null : html`<${Fact} name="only in the first">${count(value.only_before.length)}<//>`}
        ${value.only_after.length === 0 ? null : html`<${Fact} name="only in the second">${count(value.only_after.length)}<//>`}</dl>
    </div></section>
    <nav class="tabs" aria-label="Kinds of changes">${KINDS.map(([each, label, test]) => html`<a key=${each} class="button"
      aria-current=${each === kind ? "true" : undefined} href=${link(["compare", before, after], { kind: each })}>${label} (${value.changes.filter(test).length})</a>`)}</nav>
    ${shown.length === 0 ? html`<${Empty} title="No task of this kind"><p>${plural(all.n, "task")} compared.</p><//>` : html`
    <section class="panel"><ul class="plain rows changes-list">${shown.map((change) => html`<li key=${change.id}>
      <div class="change-head"><b class="one-line grow">${change.id}</b><span class="muted">${change.kind ?? ""}</span>
        <span class="number"><${Score} value=${change.before} /> → <${Score} value=${change.after} /></span>
        <b class=${`number ${change.after > change.before ? "good-text" : "bad-text"}`}>${signed(change.after - change.before)}</b></div>
      <div class="answers"><p><a href=${link(["evaluation", before], { task: change.id })}>first</a> <span>${oneLine(change.before_answer ?? "no answer", 300)}</span></p>
        <p><a href=${link(["evaluation", after], { task: change.id })}>second</a> <span>${oneLine(change.after_answer ?? "no answer", 300)}</span></p></div></li>`)}</ul></section>`}
  </div>`;
}
