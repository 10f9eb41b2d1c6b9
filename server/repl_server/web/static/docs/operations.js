// The list of operations, which a text filters, and each operation's parameters, body and responses.

import { html, useState } from "../vendor/preact-htm.module.js";
import { keyHeaders } from "../playground/api_key.js";
import { plural } from "../shared/format.js";
import { Prose } from "./prose.js";
import { example, SchemaView, typeName } from "./schema_view.js";

const METHODS = ["get", "post", "put", "patch", "delete", "head", "options"];

function listed(document) {
  return Object.entries(document.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => method in item).map((method) => ({
      path, method, operation: item[method], tag: item[method].tags?.[0] ?? "other",
    })));
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function command({ path, method, operation }, document) {
  const url = new URL(path.slice(1), window.document.baseURI).href.replaceAll("%7B", "{").replaceAll("%7D", "}");
  const lines = [`curl ${method === "get" ? "" : `-X ${method.toUpperCase()} `}${quoted(url)}`];
  if (keyHeaders()["X-API-Key"] !== undefined) lines.push("-H \"X-API-Key: $REPL_ENV_API_KEY\"");
  const body = operation.requestBody?.content?.["application/json"]?.schema;
  if (body !== undefined) {
    lines.push("-H 'Content-Type: application/json'");
    lines.push(`-d ${quoted(JSON.stringify(example(body, document.components?.schemas ?? {})))}`);
  }
  return lines.join(" \\\n    ");
}

function Copy({ text }) {
  const [copied, setCopied] = useState(false);
  const copy = () => navigator.clipboard?.writeText(text).then(() => setCopied(true), () => setCopied(false));
  return html`<button type="button" class="small" onClick=${copy}>${copied ? "Copied" : "Copy"}</button>`;
}

function Body({ title, content, schemas }) {
  return Object.entries(content ?? {}).map(([kind, { schema }]) => html`<section>
    <h3>${title} <span class="muted">${kind}</span></h3><${SchemaView} schema=${schema ?? {}} schemas=${schemas} /></section>`);
}

function Response({ status, response, schemas }) {
  const [open, setOpen] = useState(false);
  const schema = Object.values(response.content ?? {})[0]?.schema;
  return html`<div class="field">
    <div class="name"><span class=${`badge ${status < "300" ? "good" : "bad"}`}>${status}</span></div>
    <div><${Prose} text=${response.description} />
      ${schema === undefined ? null : html`<button type="button" class="small" aria-expanded=${open}
        onClick=${() => setOpen(!open)}>${open ? "Hide" : "Show"} ${typeName(schema, schemas)}</button>`}
      ${open ? html`<${SchemaView} schema=${schema} schemas=${schemas} />` : null}</div></div>`;
}

function Details({ entry, document }) {
  const schemas = document.components?.schemas ?? {};
  const { operation } = entry;
  const curl = command(entry, document);
  return html`<div class="body">
    <${Prose} text=${operation.description} />
    ${operation.parameters?.length > 0 ? html`<section><h3>Parameters</h3><div class="fields">${operation.parameters.map((each) =>
      html`<div class="field"><div class="name"><code>${each.name}</code> <span class="muted">${each.in}</span>
        ${each.required ? html`<span class="badge warn">required</span>` : null}</div>
        <div><span class="muted">${typeName(each.schema, schemas)}</span><${Prose} text=${each.description} /></div></div>`)}</div></section>` : null}
    <${Body} title="Body" content=${operation.requestBody?.content} schemas=${schemas} />
    <section><h3>Responses</h3><div class="fields">${Object.entries(operation.responses ?? {}).map(([status, response]) =>
      html`<${Response} key=${status} status=${status} response=${response} schemas=${schemas} />`)}</div></section>
    <section><h3>Command</h3><div class="command"><pre class="code-block" tabindex="0">${curl}</pre><${Copy} text=${curl} /></div></section>
  </div>`;
}

function Operation({ entry, document }) {
  const [open, setOpen] = useState(false);
  const { path, method, operation } = entry;
  return html`<details class="panel operation" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary><span class=${`method ${method}`}>${method.toUpperCase()}</span><code class="path">${path}</code>
      <span class="muted summary">${(operation.description ?? operation.summary ?? "").split("\n")[0]}</span></summary>
    ${open ? html`<${Details} entry=${entry} document=${document} />` : null}
  </details>`;
}

export function Operations({ document }) {
  const [text, setText] = useState("");
  const wanted = text.trim().toLowerCase();
  const all = listed(document);
  const shown = all.filter(({ path, method, operation }) =>
    `${method} ${path} ${operation.description ?? ""} ${operation.summary ?? ""}`.toLowerCase().includes(wanted));
  const tags = [...new Set(shown.map((each) => each.tag))];
  return html`<div class="filter"><label class="visually-hidden" for="filter">Filter routes</label>
      <input id="filter" type="search" placeholder="Filter routes" value=${text} onInput=${(event) => setText(event.currentTarget.value)} />
      <span class="muted number" role="status">${shown.length === all.length ? plural(all.length, "route") : `${shown.length} of ${plural(all.length, "route")}`}</span></div>
    ${shown.length === 0 ? html`<p class="state">No route matches “${text}”.</p>` : null}
    ${tags.map((tag) => html`<section class="group" key=${tag}><h2>${tag}</h2>${shown.filter((each) => each.tag === tag).map((entry) =>
      html`<${Operation} key=${entry.method + entry.path} entry=${entry} document=${document} />`)}</section>`)}`;
}
