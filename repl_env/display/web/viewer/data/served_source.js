// Data from the server: lists, rows of events, and the bytes of single events.

const MAX_KEPT = 16_000_000; // bytes of events that are kept parsed

export class ServedSource {
  live = true;
  notes = [];
  #token;
  #kept = new Map();
  #keptSize = 0;

  constructor(token) {
    this.#token = token;
  }

  listing() {
    return this.#json("/api/files");
  }

  rows(file, from, generation) {
    return this.#json(`/api/files/${file}/rows?from=${from}&generation=${generation}`);
  }

  evaluation(file) {
    return this.#json(`/api/files/${file}/evaluation`);
  }

  comparison(before, after) {
    return this.#json(`/api/comparisons/${before}/${after}`);
  }

  // The event of a row, as a promise; the same one while it is kept.
  event(file, row) {
    const key = `${file}:${row.generation}:${row.at}`;
    const kept = this.#kept.get(key) ?? { size: row.size, event: this.#event(file, row) };
    if (this.#kept.delete(key)) this.#keptSize -= kept.size;
    this.#kept.set(key, kept); // the last in order: the first to go is the one not used for longest
    this.#keptSize += kept.size;
    for (const [old, { size }] of this.#kept) {
      if (this.#keptSize <= MAX_KEPT || old === key) break;
      this.#kept.delete(old);
      this.#keptSize -= size;
    }
    kept.event.catch(() => this.#forget(key, kept));
    return kept.event;
  }

  #forget(key, kept) {
    if (this.#kept.get(key) !== kept) return;
    this.#kept.delete(key);
    this.#keptSize -= kept.size;
  }

  async #event(file, row) {
    const range = `bytes=${row.at}-${row.at + row.size - 1}`;
    const response = await this.#get(`/api/files/${file}/bytes`, { Range: range });
    return JSON.parse(await response.text());
  }

  async #json(path) {
    return (await this.#get(path)).json();
  }

  async #get(path, headers = {}) {
    let response;
    try {
      response = await fetch(path, { headers: { Authorization: `Bearer ${this.#token}`, ...headers } });
    } catch {
      throw new Error("The server does not answer. Is `repl-env view` still running?");
    }
    if (response.ok) return response;
    const body = await response.json().catch(() => ({}));
    throw new Error(String(body.error ?? `status ${response.status}`));
  }
}
