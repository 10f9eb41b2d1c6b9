// Groups of runs of one task, as a trainer compares them: the rewards of each beside those of the others.

import { html, useMemo } from "../../vendor/preact-htm.module.js";
import { count, moment, oneLine, plural, score } from "../../shared/format.js";
import { Empty, Failure, Loading } from "../../shared/page_states.js";
import { VirtualList } from "../../shared/virtual_list.js";
import { groupsOf, mean, runsOf } from "../data/groups.js";
import { link, replaceRoute } from "../data/router.js";
import { useListing } from "../data/use_data.js";
import { Histogram, testOfBin } from "../parts/histogram.js";
import { Score } from "../parts/labels.js";
import { ListTabs } from "../parts/list_tabs.js";
import { RewardStrip } from "../parts/reward_strip.js";

const ROW = 60;

const SORTS = {
  "": ["Newest first", null],
  best: ["Best mean first", (a, b) => (b.mean ?? -Infinity) - (a.mean ?? -Infinity)],
  worst: ["Worst mean first", (a, b) => (a.mean ?? Infinity) - (b.mean ?? Infinity)],
  spread: ["Widest spread first", (a, b) => (b.spread ?? -1) - (a.spread ?? -1)],
};

function matching(groups, query, rewards) {
  const words = (query.get("find") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const isInBin = testOfBin(query.get("score"), rewards);
  const shown = groups.filter((group) => {
    const text = [group.task, group.question, group.id].filter(Boolean).join("\n").toLowerCase();
    return words.every((word) => text.includes(word))
      && (query.get("score") === null || group.rewards.some(isInBin));
  });
  const sort = SORTS[query.get("sort") ?? ""]?.[1] ?? null;
  return sort === null ? shown : [...shown].sort(sort);
}

function GroupRow({ group, index, low, high }) {
  const masked = group.runs.filter((run) => run.stop !== "running" && run.reward === null).length;
  const unanswered = group.runs.filter((run) => run.stop !== "answer").length;
  return html`<div role="listitem" class="run-row" aria-posinset=${index + 1}>
    <a class="run-link" href=${link(["side"], { group: group.id })}>
      <span class="texts"><b class="one-line">${group.task || oneLine(group.question || group.id, 90)}</b>
        <span class="one-line muted">${moment(group.time)}${group.task && group.question ? ` · ${group.question}` : ""}</span></span>
      <span class="ends">${masked === 0 ? null : html`<span class="badge warn" title="an infrastructure error touched these">${count(masked)} masked</span>`}
        ${unanswered === 0 ? null : html`<span class="muted number" title="runs that ended without an answer">${count(unanswered)} unanswered</span>`}</span>
      <${RewardStrip} rewards=${group.rewards} mean=${group.mean} low=${low} high=${high} />
      <span class="cell-score"><${Score} value=${group.mean} /></span>
      <span class="number muted wide">${plural(group.runs.length, "run")}</span>
    </a></div>`;
}

export function GroupListPage({ source, query }) {
  const { value, error } = useListing(source);
  const runs = useMemo(() => (value === null ? [] : runsOf(value)), [value]);
  const groups = useMemo(() => groupsOf(runs), [runs]);
  if (value === null) return error === null ? html`<${Loading} what="Reading the files" />` : html`<${Failure} title="The list cannot be read" error=${error} />`;
  if (groups.length === 0) {
    return html`<${Empty} title="No groups yet"><p>No run says of which group of samples it is one.</p><a href=${link([])}>All runs</a><//>`;
  }
  const rewards = groups.flatMap((group) => group.rewards);
  const shown = matching(groups, query, rewards);
  const set = (name, chosen) => replaceRoute(link(["groups"], { ...Object.fromEntries(query), [name]: chosen }));
  const low = Math.min(0, ...rewards);
  const high = Math.max(1, ...rewards);
  return html`<div class="run-list">
    ${error === null ? null : html`<p class="note bad-text" role="alert">${error.message}</p>`}
    <${ListTabs} runs=${runs} groups=${groups} chosen="groups" />
    <section class="panel runs">
      <header><h2>Groups</h2><span class="muted" role="status">${shown.length === groups.length ? count(groups.length) : `${count(shown.length)} of ${count(groups.length)}`}</span>
        <span class="muted">mean reward <b class="number">${score(mean(rewards))}</b></span></header>
      <div class="toolbar"><div class="filters">
          <label class="grow"><span class="visually-hidden">Search</span>
            <input type="search" placeholder="Search task and question" value=${query.get("find") ?? ""}
              onInput=${(event) => set("find", event.currentTarget.value)} /></label>
          <label><span class="visually-hidden">Order</span>
            <select value=${query.get("sort") ?? ""} onChange=${(event) => set("sort", event.currentTarget.value)}>
              ${Object.entries(SORTS).map(([name, [label]]) => html`<option key=${name} value=${name}>${label}</option>`)}</select></label></div>
        <${Histogram} values=${rewards} chosen=${query.get("score")}
          addressOf=${(bin) => link(["groups"], { ...Object.fromEntries(query), score: bin })} /></div>
      ${shown.length === 0
        ? html`<${Empty} title="No group matches"><a href=${link(["groups"])}>Clear the filters</a><//>`
        : html`<${VirtualList} count=${shown.length} height=${ROW} attributes=${{ role: "list", "aria-label": "Groups" }} render=${(index) => (
          html`<${GroupRow} key=${shown[index].id} group=${shown[index]} index=${index} low=${low} high=${high} />`)} />`}
    </section>
  </div>`;
}
