// A histogram of scores whose bars are links.

import { html } from "../../vendor/preact-htm.module.js";
import { isNumber, plural, score } from "../../shared/format.js";

const BINS = 10;
const WIDTH = 300; // of the drawing; it scales with its place
const HEIGHT = 84;
const AXIS = 16;

// Bins over all values: [{ low, high, count }], of 0 to 1 where all values are in there.
export function binsOf(values) {
  const given = values.filter(isNumber);
  if (given.length === 0) return [];
  const inside = given.every((value) => value >= 0 && value <= 1);
  const low = inside ? 0 : Math.min(...given);
  const high = inside ? 1 : Math.max(...given);
  const width = (high - low || 1) / BINS;
  const bins = Array.from({ length: BINS }, (_, index) => ({
    low: low + index * width, high: low + (index + 1) * width, count: 0,
  }));
  for (const value of given) bins[binOf(value, low, width)].count += 1;
  return bins;
}

function binOf(value, low, width) {
  return Math.min(BINS - 1, Math.max(0, Math.floor((value - low) / width + 1e-9)));
}

// Returns a test of a value: whether it is in the bin that the text "low..high" of an address names.
export function testOfBin(text, values) {
  if (text === null) return () => true;
  const bins = binsOf(values);
  const index = bins.findIndex((bin) => binName(bin) === text);
  return (value) => index >= 0 && isNumber(value) && binOf(value, bins[0].low, bins[0].high - bins[0].low) === index;
}

export function binName({ low, high }) {
  return `${Number(low.toPrecision(4))}..${Number(high.toPrecision(4))}`;
}

// `addressOf(name)`: the address for the bin of this name, or for all values if null.
export function Histogram({ values, chosen, addressOf, noun = "run" }) {
  const bins = binsOf(values);
  if (bins.length === 0) return null;
  const most = Math.max(...bins.map((bin) => bin.count));
  const step = WIDTH / BINS;
  return html`<figure class="histogram">
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT + AXIS}`} role="group" aria-label="Histogram of scores">
      <line x1="0" x2=${WIDTH} y1=${HEIGHT} y2=${HEIGHT} class="axis" />
      ${bins.map((bin, index) => {
        const name = binName(bin);
        const tall = bin.count === 0 ? 0 : Math.max(3, (bin.count / most) * (HEIGHT - 16));
        const title = `${plural(bin.count, noun)} with a score from ${score(bin.low)} to ${score(bin.high)}`;
        return html`<a href=${addressOf(chosen === name ? null : name)} key=${name} aria-label=${title}
            aria-current=${chosen === name ? "true" : undefined} tabindex=${bin.count === 0 ? -1 : 0}
            class=${`bin${chosen === name ? " chosen" : ""}${bin.count === 0 ? " none" : ""}`}>
          <title>${title}</title>
          <rect class="reach" x=${index * step} y="0" width=${step} height=${HEIGHT} />
          <rect class="bar" x=${index * step + 1.5} y=${HEIGHT - tall} width=${step - 3} height=${tall} rx="2" />
          ${bin.count === 0 ? null : html`<text x=${(index + 0.5) * step} y=${HEIGHT - tall - 4}>${bin.count}</text>`}
        </a>`;
      })}
      <text class="tick first" x="0" y=${HEIGHT + 12}>${score(bins[0].low)}</text>
      <text class="tick" x=${WIDTH / 2} y=${HEIGHT + 12}>${score((bins[0].low + bins[BINS - 1].high) / 2)}</text>
      <text class="tick last" x=${WIDTH} y=${HEIGHT + 12}>${score(bins[BINS - 1].high)}</text>
    </svg>
  </figure>`;
}
