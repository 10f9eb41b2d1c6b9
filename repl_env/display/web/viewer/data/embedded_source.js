// Data that is in the page: files with their rows and events, evaluations, comparisons.

export class EmbeddedSource {
  live = false;
  #data;

  constructor(data) {
    this.#data = data;
    this.notes = data.notes;
  }

  async listing() {
    const files = this.#data.files.map(({ rows, events, evaluation, ...shown }) => shown);
    return { files, more: false };
  }

  async rows(file, from) {
    const { rows, size } = this.#file(file);
    return { generation: 0, start: from, rows: rows.slice(from), more: false, size };
  }

  async event(file, row) {
    return this.#file(file).events[row.index];
  }

  async evaluation(file) {
    return this.#file(file).evaluation;
  }

  async comparison(before, after) {
    const found = this.#data.comparisons?.[`${before}/${after}`];
    if (found === undefined) throw new Error("This file has no such comparison; `repl-env view` shows one.");
    return found;
  }

  #file(id) {
    const found = this.#data.files.find((file) => file.id === id);
    if (found === undefined) throw new Error("There is no such file here.");
    return found;
  }
}
