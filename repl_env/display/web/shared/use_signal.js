// `useSignal(signal)`: the value of a signal in a component, which is rendered again when it changes.

import { useEffect, useState } from "../vendor/preact-htm.module.js";
import { effect } from "../vendor/signals-core.module.js";

export function useSignal(source) {
  const [, setVersion] = useState(0);
  useEffect(() => {
    let first = true;
    return effect(() => {
      source.value;
      if (!first) setVersion((version) => version + 1);
      first = false;
    });
  }, [source]);
  return source.value;
}
