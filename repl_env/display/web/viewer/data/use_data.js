// Data of a source in components: { value, error, loading }, and the latest one wins.

import { useEffect, useState } from "../../vendor/preact-htm.module.js";

// `load()` gives a promise; it is called anew when one of `inputs` changes. The value before stays
// until the new value is there, if `keep`.
export function useData(load, inputs, keep = false) {
  const [state, setState] = useState({ value: null, error: null, loading: true });
  useEffect(() => {
    let current = true;
    setState((before) => ({ value: keep ? before.value : null, error: null, loading: true }));
    Promise.resolve().then(load).then(
      (value) => current && setState({ value, error: null, loading: false }),
      (error) => current && setState({ value: null, error, loading: false }),
    );
    return () => {
      current = false;
    };
  }, inputs);
  return state;
}

// The list of files, again every few seconds while the page is looked at.
export function useListing(source) {
  const [state, setState] = useState({ value: null, error: null });
  useEffect(() => {
    let timer = 0;
    let stopped = false;
    let before = "";
    async function look() {
      let more = false;
      try {
        const value = document.hidden && before !== "" ? null : await source.listing();
        const text = value === null ? before : JSON.stringify(value);
        more = value?.more ?? false;
        if (!stopped && text !== before) setState({ value, error: null });
        before = text;
      } catch (error) {
        before = "";
        if (!stopped) setState((old) => ({ ...old, error }));
      }
      if (!stopped && (source.live || more)) timer = setTimeout(look, more ? 50 : 3000);
    }
    look();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [source]);
  return state;
}
