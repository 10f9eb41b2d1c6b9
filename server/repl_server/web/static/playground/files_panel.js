// The files of the session's workspace: a list, uploads, downloads.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.module.js";
import { bytes, count, plural } from "../shared/format.js";
import { useScrollStop } from "../shared/scroll_stop.js";
import { useSignal } from "../shared/use_signal.js";
import { getArchive, getFile, listFiles, putFile, save } from "./server_api.js";

const SHOWN = 200;
const HIDDEN = /(^|\/)\./; // caches of libraries, mostly

export function FilesPanel({ session }) {
  const busy = useSignal(session.busy);
  const [listing, setListing] = useState(null);
  const [error, setError] = useState(null);
  const [work, setWork] = useState(null);
  const [all, setAll] = useState(false);
  const chooser = useRef(null);
  const stop = useScrollStop();
  const attempt = async (what, task) => {
    setWork(what);
    setError(null);
    try {
      await task();
    } catch (failure) {
      setError(failure.message);
    } finally {
      setWork(null);
    }
  };
  const refresh = () => listFiles(session.token).then(setListing, (failure) => setError(failure.message));
  useEffect(() => {
    if (busy === null && !session.lost.value && session.connection.state.value === "open") refresh();
  }, [busy]);
  const upload = (files) => attempt("Uploading", async () => {
    for (const file of files) await putFile(session.token, file.name, file);
    await refresh();
  });
  const download = (path) => attempt("Downloading", async () => save(await getFile(session.token, path), path.split("/").pop()));
  const archive = () => attempt("Downloading", async () => save(await getArchive(session.token), "workspace.tar"));
  const files = (listing?.files ?? []).filter((each) => each.kind !== "directory");
  const plain = files.filter((each) => !HIDDEN.test(each.path));
  const hidden = files.length - plain.length;
  const rows = all ? files : plain;
  return html`<section class="panel" onDragOver=${(event) => event.preventDefault()}
      onDrop=${(event) => { event.preventDefault(); upload([...event.dataTransfer.files]); }}>
    <header><h2>Files</h2><span class="muted number">${listing === null ? "" : count(rows.length)}</span>
      <button type="button" class="small" disabled=${work !== null} onClick=${() => chooser.current.click()}>Upload</button>
      ${files.length > 1 ? html`<button type="button" class="small" disabled=${work !== null} onClick=${archive}>Save all</button>` : null}
      <input ref=${chooser} class="visually-hidden" type="file" multiple tabindex="-1" aria-label="Files to upload"
        onChange=${(event) => { upload([...event.currentTarget.files]); event.currentTarget.value = ""; }} /></header>
    <div class="body">
      ${error === null ? null : html`<p class="bad" role="alert">${error}</p>`}
      ${work === null ? null : html`<p class="muted" role="status">${work}…</p>`}
      ${listing !== null && rows.length === 0 ? html`<p class="muted">The workspace is empty. Drop files here.</p>` : null}
      <ul class="files" aria-label="Files" ...${stop}>${rows.slice(0, SHOWN).map(({ path, size, kind }) => html`<li key=${path}>
        <span class="one-line mono" title=${path}>${path}</span><span class="muted number">${kind === "file" ? bytes(size) : kind}</span>
        ${kind === "file" ? html`<button type="button" class="small quiet" aria-label=${`Save ${path}`} disabled=${work !== null} onClick=${() => download(path)}>Save</button>` : null}</li>`)}</ul>
      ${hidden > 0 ? html`<button type="button" class="small quiet" aria-expanded=${all} onClick=${() => setAll(!all)}>
        ${all ? "Hide" : "Show"} ${plural(hidden, "hidden file")}</button>` : null}
      ${rows.length > SHOWN || listing?.complete === false ? html`<p class="muted">Not all files are shown.</p>` : null}
    </div></section>`;
}
