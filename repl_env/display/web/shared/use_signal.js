// `useSignal(signal)`: the value of a signal in a component, which is rendered again when it changes.

import { useEffect, useState } from "../vendor/preact-htm.module.js";
import { effect } from "../vendor/signals-core.module.js";

export function useSignal(source) {
  const [, setSeen] = useState(() => source.peek());
  // The first run of the effect compares too: the signal may have changed since the component was rendered.
  useEffect(() => effect(() => {
    const { value } = source;
    setSeen(() => value);
  }), [source]);
  return source.peek();
}
