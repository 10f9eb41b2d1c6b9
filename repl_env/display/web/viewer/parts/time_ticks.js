// Ticks of a time axis. Their distances are round numbers of a unit, so that each label is exact.

const SUBMULTIPLES = [["µs", 1e-6], ["ms", 1e-3], ["s", 1]];
const MULTIPLES = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
// Of a minute and more; beyond the last one 1, 2 and 5 times powers of ten days.
const LONG_STEPS = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200];

// Returns { at, label } of ticks from 0 to `seconds`: at most `most` or four, and at least two.
export function timeTicks(seconds, most) {
  const step = stepOf(seconds / Math.max(3, most - 1)); // a third: the next round step is in sight
  const ticks = [];
  // A share of a step more, for sums of floating-point numbers.
  for (let number = 0; number * step <= seconds + step * 1e-6; number += 1) {
    ticks.push({ at: Math.min(number * step, seconds), label: label(number, step) });
  }
  return ticks;
}

// The shortest round step that is not shorter than `least` seconds.
function stepOf(least) {
  if (least <= 10) return oneTwoFive(least);
  if (least <= 30) return least <= 20 ? 20 : 30;
  return LONG_STEPS.find((step) => step >= least) ?? 86400 * oneTwoFive(Math.max(1, least / 86400));
}

function oneTwoFive(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= least * (1 - 1e-9));
}

function label(number, step) {
  const seconds = number * step;
  if (number === 0) return "0";
  if (seconds >= 59.999) return compound(Math.round(seconds));
  const [name, size] = SUBMULTIPLES.findLast(([, unit]) => step >= unit * 0.0999) ?? SUBMULTIPLES[0];
  return `${Number((seconds / size).toPrecision(9))} ${name}`;
}

// Whole seconds in the two or more units that say them: "1 h 30 min".
function compound(seconds) {
  const parts = [];
  let rest = seconds;
  for (const [name, size] of MULTIPLES) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count > 0) parts.push(`${count} ${name}`);
  }
  return parts.join(" ");
}
