// What holds the session: the tier that the server measured, and its layers.

import { html } from "../vendor/preact-htm.module.js";
import { useSignal } from "../shared/use_signal.js";

const KINDS = { vm: "good", gvisor: "good", container: "good", jailed: "good", confined: "warn", process: "bad" };
const TOLD = {
  vm: "A virtual machine of its own.",
  gvisor: "A container with a kernel of its own.",
  container: "A container.",
  jailed: "Namespaces, a file system view of its own, a filter of system calls and resource limits.",
  confined: "A filter of system calls, Landlock and resource limits; process ids are shared with the server.",
  process: "Not isolated: a process with resource limits only.",
};

export function IsolationBadge({ session }) {
  const found = useSignal(session.last)?.metadata.isolation;
  if (found?.tier === undefined) return null;
  const tier = String(found.tier);
  return html`<details class="isolation">
    <summary><span class=${`badge ${KINDS[tier] ?? "warn"}`}>${tier === "process" ? "not isolated" : tier}</span></summary>
    <div class="panel"><div class="body"><p>${TOLD[tier] ?? "A tier that this page does not know."}</p>
      <p class="muted">Active layers, as measured:</p>
      <ul>${(found.layers ?? []).map((each) => html`<li><code>${String(each)}</code></li>`)}</ul></div></div>
  </details>`;
}
