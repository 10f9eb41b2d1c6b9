// The rewards of a group as dots on a line, which all groups of a list share, and their mean as a bar.

import { html } from "../../vendor/preact-htm.module.js";
import { plural, score } from "../../shared/format.js";

const WIDTH = 120;
const HEIGHT = 20;
const EDGE = 6;

export function RewardStrip({ rewards, mean, low, high }) {
  const place = (value) => EDGE + ((value - low) / (high - low || 1)) * (WIDTH - 2 * EDGE);
  const title = `${plural(rewards.length, "reward")}: ${rewards.map(score).join(", ")}`;
  return html`<svg class="strip" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} width=${WIDTH} height=${HEIGHT} role="img" aria-label=${title}>
    <title>${title}</title>
    <line class="axis" x1="0" x2=${WIDTH} y1=${HEIGHT / 2} y2=${HEIGHT / 2} />
    ${rewards.map((value, index) => html`<circle key=${index} cx=${place(value)} cy=${HEIGHT / 2} r="4" />`)}
    ${mean === null ? null : html`<line class="mean" x1=${place(mean)} x2=${place(mean)} y1="2" y2=${HEIGHT - 2} />`}
  </svg>`;
}
