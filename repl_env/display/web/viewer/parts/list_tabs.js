// The two lists of a folder: single runs, and groups of runs of one task.

import { html } from "../../vendor/preact-htm.module.js";
import { count } from "../../shared/format.js";
import { link } from "../data/router.js";

export function ListTabs({ runs, groups, chosen }) {
  if (groups.length === 0) return null;
  const tabs = [["runs", "Runs", runs.length, []], ["groups", "Groups", groups.length, ["groups"]]];
  return html`<nav class="tabs" aria-label="Lists">${tabs.map(([name, label, number, path]) => html`<a key=${name} class="button"
    aria-current=${name === chosen ? "true" : undefined} href=${link(path)}>${label} (${count(number)})</a>`)}</nav>`;
}
