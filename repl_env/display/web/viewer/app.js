// The viewer: a head, and the page of the place in the address.

import { html, render, useErrorBoundary, useEffect } from "../vendor/preact-htm.module.js";
import { Failure } from "../shared/page_states.js";
import { startTheme, ThemeSwitch } from "../shared/theme_switch.js";
import { useSignal } from "../shared/use_signal.js";
import { link, route } from "./data/router.js";
import { ComparisonPage } from "./pages/comparison_page.js";
import { EvaluationPage } from "./pages/evaluation_page.js";
import { GroupListPage } from "./pages/group_list_page.js";
import { RunListPage } from "./pages/run_list_page.js";
import { SideBySidePage } from "./pages/side_by_side_page.js";
import { TrajectoryPage } from "./pages/trajectory_page.js";

const PAGES = {
  runs: RunListPage, groups: GroupListPage, run: TrajectoryPage, side: SideBySidePage, evaluation: EvaluationPage, compare: ComparisonPage,
};

const TITLES = { runs: "Runs", groups: "Groups", run: "Trajectory", side: "Side by side", evaluation: "Evaluation", compare: "Comparison" };

function Page({ source }) {
  const { path, query } = useSignal(route);
  const [name = "runs", ...parts] = path;
  const [error, forget] = useErrorBoundary();
  useEffect(() => forget(), [location.hash]);
  useEffect(() => {
    document.title = `${TITLES[name] ?? "Page"} · repl-env viewer`;
  }, [name]);
  if (error !== undefined) return html`<${Failure} title="This page broke" error=${error} retry=${forget} />`;
  const shown = Object.hasOwn(PAGES, name) ? PAGES[name] : null;
  if (shown === null) return html`<${Failure} title="There is no such page" error=${`#/${name}`} />`;
  return html`<${shown} source=${source} parts=${parts} query=${query} />`;
}

function Viewer({ source }) {
  return html`<header class="top">
      <h1 class="brand"><a href=${link([])}><span aria-hidden="true">❯</span> repl-env <span class="muted">viewer</span></a></h1>
      <span class="grow"></span><${ThemeSwitch} />
    </header>
    ${source.notes.map((note) => html`<p class="note">${note}</p>`)}
    <main><${Page} source=${source} /></main>`;
}

export function startViewer(source) {
  startTheme();
  const place = document.getElementById("page");
  place.replaceChildren();
  render(html`<${Viewer} source=${source} />`, place);
}
