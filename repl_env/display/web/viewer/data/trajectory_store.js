// A trajectory that is being read: its tree so far, and whether more is coming.

import { signal } from "../../vendor/signals-core.module.js";
import { RunTree } from "./run_tree.js";

const PAUSE = 1000; // milliseconds between looks at a file whose run goes on
const LONG_PAUSE = 5000; // at one whose run has ended

export class TrajectoryStore {
  // { tree, loading, error }; a new object at each change.
  state = signal({ tree: new RunTree(), loading: true, error: null, size: 0 });
  #source;
  #file;
  #generation = 0;
  #timer = 0;
  #stopped = false;

  constructor(source, file) {
    this.#source = source;
    this.#file = file;
    this.#read();
  }

  stop() {
    this.#stopped = true;
    clearTimeout(this.#timer);
  }

  event(row) {
    return this.#source.event(this.#file, row);
  }

  get file() {
    return this.#file;
  }

  async #read() {
    let { tree } = this.state.value;
    try {
      const found = await this.#source.rows(this.#file, tree.rows.length, this.#generation);
      if (this.#stopped) return;
      if (found.generation !== this.#generation) {
        tree = new RunTree();
        this.#generation = found.generation;
      }
      tree.add(found.rows, found.generation);
      if (found.rows.length > 0 || found.more !== this.state.value.loading || this.state.value.error !== null) {
        this.state.value = { tree, loading: found.more, error: null, size: found.size };
      }
    } catch (error) {
      if (this.#stopped) return;
      this.state.value = { ...this.state.value, loading: false, error };
    }
    this.#again();
  }

  #again() {
    const { loading, error, tree } = this.state.value;
    if (loading && error === null) {
      this.#timer = setTimeout(() => this.#read(), 0);
    } else if (this.#source.live) {
      const look = () => (document.hidden ? this.#again() : this.#read());
      this.#timer = setTimeout(look, tree.complete || error !== null ? LONG_PAUSE : PAUSE);
    }
  }
}
