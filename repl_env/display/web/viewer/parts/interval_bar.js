// A mean with its interval on a scale, as a drawing beside the numbers.

import { html } from "../../vendor/preact-htm.module.js";
import { isNumber } from "../../shared/format.js";

const WIDTH = 160;

export function IntervalBar({ value, low, high, from = 0, to = 1, zero = null }) {
  if (!isNumber(value)) return null;
  const place = (each) => 4 + ((Math.min(to, Math.max(from, each)) - from) / (to - from)) * (WIDTH - 8);
  return html`<svg class="interval" viewBox=${`0 0 ${WIDTH} 16`} width=${WIDTH} height="16" aria-hidden="true">
    <line class="axis" x1="4" x2=${WIDTH - 4} y1="8" y2="8" />
    ${zero === null ? null : html`<line class="zero" x1=${place(zero)} x2=${place(zero)} y1="1" y2="15" />`}
    ${isNumber(low) ? html`<rect class="range" x=${place(low)} y="5" width=${Math.max(2, place(high) - place(low))} height="6" rx="3" />` : null}
    <circle class="point" cx=${place(value)} cy="8" r="4" />
  </svg>`;
}
