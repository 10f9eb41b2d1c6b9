// The documentation of the server's routes, from its own openapi.json.

import { html, render, useEffect, useState } from "../vendor/preact-htm.module.js";
import { Failure, Loading } from "../shared/page_states.js";
import { startTheme, ThemeSwitch } from "../shared/theme_switch.js";
import { KeyForm, keyHeaders } from "../playground/api_key.js";
import { Operations } from "./operations.js";
import { Prose } from "./prose.js";

async function fetchDocument() {
  const response = await fetch("openapi.json", { headers: keyHeaders(), cache: "no-cache" });
  if (response.status === 401) return { needsKey: true };
  if (!response.ok) throw new Error(`openapi.json: the server answered ${response.status}`);
  return { document: await response.json() };
}

function Page() {
  const [state, setState] = useState({});
  const load = () => {
    setState({});
    fetchDocument().then(setState, (error) => setState({ error }));
  };
  useEffect(load, []);
  const found = state.document;
  return html`<header class="top">
      <h1>${found ? found.info.title : "repl-env"}</h1>
      ${found ? html`<span class="badge">${found.info.version}</span>` : null}
      <nav><a href="openapi.json">openapi.json</a><${ThemeSwitch} /></nav>
    </header>
    <main>
      ${state.error ? html`<${Failure} title="The document did not load" error=${state.error} retry=${load} />` : null}
      ${state.needsKey ? html`<${KeyForm} onKey=${load} />` : null}
      ${Object.keys(state).length === 0 ? html`<${Loading} what="Loading the routes" />` : null}
      ${found?.info.description ? html`<${Prose} text=${found.info.description} />` : null}
      ${found ? html`<${Operations} document=${found} />` : null}
    </main>`;
}

startTheme();
render(html`<${Page} />`, document.getElementById("page"));
