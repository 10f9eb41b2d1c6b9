// A JSON schema as a table of fields. Nested objects are rendered when somebody opens them, because
// schemas may contain themselves.

import { html, useState } from "../vendor/preact-htm.module.js";
import { Prose } from "./prose.js";

function resolved(schema, schemas) {
  const name = /^#\/components\/schemas\/(.+)$/.exec(schema?.$ref ?? "")?.[1];
  return name === undefined ? [schema ?? {}, schema?.title] : [schemas[name] ?? {}, name];
}

function alternatives(schema) {
  return schema.anyOf ?? schema.oneOf ?? schema.allOf ?? [];
}

// The type in words, such as "text or null", "list of numbers".
export function typeName(given, schemas) {
  const [schema, name] = resolved(given, schemas);
  if (given?.$ref !== undefined) return name;
  const kinds = alternatives(schema);
  if (kinds.length > 0) return kinds.map((each) => typeName(each, schemas)).join(" or ");
  if (schema.enum !== undefined) return schema.enum.map((each) => JSON.stringify(each)).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `array of ${typeName(schema.items ?? {}, schemas)}`;
  return schema.type ?? "any JSON";
}

function limits(schema) {
  const names = { minimum: "≥", maximum: "≤", exclusiveMinimum: ">", exclusiveMaximum: "<", maxLength: "length ≤", minLength: "length ≥", pattern: "matches" };
  const found = [schema, ...alternatives(schema)].flatMap((each) =>
    Object.entries(names).filter(([name]) => each[name] !== undefined).map(([name, mark]) => `${mark} ${each[name]}`));
  return found.join(", ");
}

// The object schema that a field leads to, if any.
function inner(given, schemas) {
  const [schema] = resolved(given, schemas);
  if (schema.properties !== undefined) return schema;
  if (schema.type === "array") return inner(schema.items ?? {}, schemas);
  for (const each of alternatives(schema)) {
    const found = inner(each, schemas);
    if (found !== null) return found;
  }
  return null;
}

function Field({ name, schema, required, schemas }) {
  const [open, setOpen] = useState(false);
  const [plain] = resolved(schema, schemas);
  const nested = inner(schema, schemas);
  const more = [limits(plain), "default" in plain && plain.default !== null ? `default ${JSON.stringify(plain.default)}` : ""].filter(Boolean).join("; ");
  return html`<div class="field">
    <div class="name"><code>${name}</code>${required ? html`<span class="badge warn">required</span>` : null}</div>
    <div>
      <span class="muted">${typeName(schema, schemas)}${more ? ` (${more})` : ""}</span>
      <${Prose} text=${schema.description ?? plain.description} />
      ${nested === null ? null : html`<button type="button" class="small" aria-expanded=${open} onClick=${() => setOpen(!open)}>
        ${open ? "Hide fields" : "Show fields"}</button>`}
      ${open ? html`<${SchemaView} schema=${nested} schemas=${schemas} />` : null}
    </div>
  </div>`;
}

export function SchemaView({ schema: given, schemas }) {
  const found = inner(given, schemas);
  if (found === null) return html`<p class="muted">${typeName(given, schemas)}</p>`;
  const required = new Set(found.required ?? []);
  return html`<div class="fields">${Object.entries(found.properties).map(([name, schema]) =>
    html`<${Field} key=${name} name=${name} schema=${schema} required=${required.has(name)} schemas=${schemas} />`)}
    ${found.additionalProperties === true ? html`<p class="muted">Further fields are allowed.</p>` : null}</div>`;
}

// An example of the required fields, for a command line.
export function example(given, schemas, depth = 0) {
  const [schema] = resolved(given, schemas);
  if (schema.default !== undefined && schema.default !== null) return schema.default;
  const found = schema.properties === undefined ? null : schema;
  if (found !== null && depth < 4) {
    const required = found.required ?? [];
    return Object.fromEntries(required.map((name) => [name, example(found.properties[name] ?? {}, schemas, depth + 1)]));
  }
  const kinds = alternatives(schema);
  if (kinds.length > 0) return example(kinds[0], schemas, depth + 1);
  return { string: "…", integer: 1, number: 1, boolean: false, array: [], object: {} }[schema.type] ?? null;
}
