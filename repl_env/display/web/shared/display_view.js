// What a session displays, by its richest form. Its HTML is hostile: it stands in a frame that has no
// origin, no scripts, no forms and no network, made of a blob, since text may not become a document
// here. An SVG is a picture, which runs and loads nothing.

import { html, useEffect, useState } from "../vendor/preact-htm.module.js";
import { asText, bytes } from "./format.js";
import { LongText } from "./long_text.js";

const HTML = "text/html";
const SVG = "image/svg+xml";
const TEXTS = ["text/latex", "text/markdown"];
const LONGEST = 2 << 20; // characters of a form that is shown
const POLICY = "default-src 'none'; img-src data:; font-src data:; style-src 'unsafe-inline'";
const HEAD = `<!doctype html><meta http-equiv="Content-Security-Policy" content="${POLICY}"><base target="_blank">`;
// A frame without an origin cannot be measured from outside, so the height is estimated: lines are blocks and
// rows of tables, or as many as the text fills; paragraphs and lists have margins, a picture takes the place
// of several lines.
const [LINE, MARGIN, PICTURE, LETTERS] = [24, 18, 160, 90];
const [LEAST, MOST, TALLEST] = [30, 480, 6000];

function useBlob(text, type) {
  const [url, setURL] = useState(null);
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([text], { type }));
    setURL(made);
    return () => URL.revokeObjectURL(made);
  }, [text, type]);
  return url;
}

// A document with HTML of a session, which loads nothing from elsewhere.
export function sandboxedPage(page) {
  return `${HEAD}${page}`;
}

function heightOf(page) {
  const number = (pattern) => page.match(pattern)?.length ?? 0;
  const blocks = number(/<(?:tr|li|p|br|h[1-6]|div|pre|hr|dt|dd)\b/gi);
  const letters = page.split("<").reduce((sum, part) => sum + part.length - part.indexOf(">") - 1, 0);
  return LEAST + LINE * Math.ceil(Math.max(blocks, letters / LETTERS))
    + MARGIN * number(/<(?:p|h[1-6]|[uo]l)\b/gi) + PICTURE * number(/<(?:img|svg)\b/gi);
}

function Frame({ page }) {
  const url = useBlob(sandboxedPage(page), "text/html;charset=utf-8");
  const [whole, setWhole] = useState(false);
  const height = heightOf(page);
  return url === null ? null : html`<div><iframe class="display" sandbox="" title="displayed"
      height=${Math.min(height, whole ? TALLEST : MOST)} src=${url}></iframe>
    ${height <= MOST ? null : html`<button type="button" class="small" aria-expanded=${whole}
      onClick=${() => setWhole(!whole)}>${whole ? "Show less" : "Show all"}</button>`}</div>`;
}

function Picture({ picture }) {
  const url = useBlob(picture, SVG);
  return url === null ? null : html`<figure class="plot"><img src=${url} alt="displayed" /></figure>`;
}

function Data({ form, content }) {
  return html`<details><summary>${form} <span class="muted">${bytes(content.length)}</span></summary><${LongText} value=${content} kind="output" /></details>`;
}

function formsOf(display) {
  const forms = display.forms !== null && typeof display.forms === "object" ? display.forms : {};
  return Object.fromEntries(Object.entries(forms).filter(([, content]) => typeof content === "string" && content.length <= LONGEST));
}

export function DisplayView({ display }) {
  const forms = formsOf(display);
  if (HTML in forms) return html`<${Frame} page=${forms[HTML]} />`;
  if (SVG in forms) return html`<${Picture} picture=${forms[SVG]} />`;
  const text = TEXTS.find((form) => form in forms);
  const data = Object.keys(forms).find((form) => form.startsWith("application/"));
  return html`<${LongText} value=${text === undefined ? display.text : forms[text]} kind="output" />
    ${data === undefined ? null : html`<${Data} form=${data} content=${forms[data]} />`}`;
}

// The output of a cell in its order: texts, and displays in place of their plain text. `value` is the
// text of the last expression, which ends `stdout`.
export function outputParts({ stdout, value, displays }) {
  const parts = [];
  let rest = asText(stdout);
  let ending = asText(value);
  for (const display of Array.isArray(displays) ? displays : []) {
    if (display === null || typeof display !== "object") continue;
    if (display.is_value === true) {
      parts.push({ value: display });
      continue;
    }
    const line = `${asText(display.text)}\n`;
    const at = rest.indexOf(line);
    if (at > 0) parts.push({ text: rest.slice(0, at) });
    if (at >= 0) rest = rest.slice(at + line.length);
    parts.push({ display });
  }
  const shown = ending === "" ? "" : `${ending}\n`;
  if (shown !== "" && rest.endsWith(shown)) rest = rest.slice(0, -shown.length);
  else ending = "";
  const last = parts.findIndex((part) => part.value !== undefined);
  const rich = last < 0 ? null : parts.splice(last, 1)[0].value;
  if (rest !== "") parts.push({ text: rest });
  if (rich !== null) parts.push({ value: rich });
  else if (ending !== "") parts.push({ ending });
  return parts;
}

export function Output({ result }) {
  return outputParts(result).map((part, index) => {
    if (part.display !== undefined) return html`<${DisplayView} key=${index} display=${part.display} />`;
    if (part.text !== undefined) return html`<${LongText} key=${index} value=${part.text} kind="output" />`;
    return html`<div key=${index} class="value"><span class="muted" aria-hidden="true">→</span>
      ${part.value === undefined ? html`<${LongText} value=${part.ending} kind="output" />` : html`<${DisplayView} display=${part.value} />`}</div>`;
  });
}
