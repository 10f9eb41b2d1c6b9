// `useScrollStop()`: for an element that may scroll, its `ref` and further attributes. The element is a tab
// stop while its content is larger than its room, so that the arrow keys of a keyboard can scroll it.

import { useLayoutEffect, useRef, useState } from "../vendor/preact-htm.module.js";

export function useScrollStop() {
  const ref = useRef(null);
  const [scrolls, setScrolls] = useState(false);
  useLayoutEffect(() => {
    const element = ref.current;
    const look = () => setScrolls(element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight);
    const room = new ResizeObserver(look);
    const content = new MutationObserver(look);
    room.observe(element);
    content.observe(element, { childList: true, subtree: true, characterData: true });
    look();
    return () => {
      room.disconnect();
      content.disconnect();
    };
  }, []);
  return scrolls ? { ref, tabindex: 0 } : { ref };
}
