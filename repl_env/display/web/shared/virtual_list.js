// A list of any length with rows of one height, of which only those in sight are in the page.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact-htm.module.js";

const MARGIN = 10; // rows above and below those in sight
const TALLEST = 8_000_000; // pixels; browsers place nothing far below this

// `render(index)` gives the row's content, `height` its pixels. `focus` is a row to keep in sight.
// `attributes` go to the scrolling element.
export function VirtualList({ count, height, render, focus = -1, attributes = {} }) {
  const frame = useRef(null);
  const [top, setTop] = useState(0);
  const [room, setRoom] = useState(600);
  const total = count * height;
  const scale = total > TALLEST ? total / TALLEST : 1;

  useLayoutEffect(() => {
    const watcher = new ResizeObserver(() => setRoom(frame.current?.clientHeight ?? 600));
    watcher.observe(frame.current);
    return () => watcher.disconnect();
  }, []);
  useEffect(() => {
    const element = frame.current;
    if (focus < 0 || element === null) return;
    const place = (focus * height) / scale;
    if (place < element.scrollTop) element.scrollTop = place - height;
    else if (place + 2 * height > element.scrollTop + element.clientHeight) {
      element.scrollTop = place + 2 * height - element.clientHeight;
    }
  }, [focus, height, scale, room]);

  const above = top * scale;
  const first = Math.max(0, Math.floor(above / height) - MARGIN);
  const last = Math.min(count, Math.ceil((above + room) / height) + MARGIN);
  const rows = [];
  for (let index = first; index < last; index += 1) rows.push(render(index));
  return html`<div class="virtual-list" ref=${frame} onScroll=${(event) => setTop(event.currentTarget.scrollTop)} ...${attributes}>
    <div class="room" role="presentation" style=${{ height: `${total / scale}px` }}>
      <div class="rows" role="presentation" style=${{ transform: `translateY(${top + first * height - above}px)` }}>${rows}</div>
    </div>
  </div>`;
}
