// Numbers as people read them. Each takes whatever a recording has, and returns text.

const NONE = "–";
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

export function count(value) {
  return isNumber(value) ? WHOLE.format(value) : NONE;
}

export function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function score(value) {
  if (!isNumber(value)) return NONE;
  const text = value.toFixed(3).replace(/\.?0+$/, "");
  return text.replace("-", "−");
}

export function signed(value) {
  return isNumber(value) && value > 0 ? `+${score(value)}` : score(value);
}

export function dollars(value, unpriced = 0) {
  if (!isNumber(value)) return NONE;
  if (value === 0 && unpriced > 0) return "unknown";
  const known = value === 0 ? "$0" : value < 1 ? `$${value.toFixed(4)}` : `$${value.toFixed(2)}`;
  return unpriced > 0 ? `${known} + ?` : known;
}

export function duration(seconds) {
  if (!isNumber(seconds)) return NONE;
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds === 0) return "0 s";
  if (seconds < 0.0009995) return `${Number((seconds * 1e6).toPrecision(3))} µs`;
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 59.5) return `${seconds.toFixed(0)} s`;
  const minutes = Math.round(seconds / 60);
  if (seconds < 3570) {
    const whole = Math.floor(Math.round(seconds) / 60);
    return `${whole} min ${String(Math.round(seconds) % 60).padStart(2, "0")} s`;
  }
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  const hours = Math.round(seconds / 3600);
  return `${Math.floor(hours / 24)} d ${String(hours % 24).padStart(2, "0")} h`;
}

export function bytes(value) {
  if (!isNumber(value)) return NONE;
  const units = ["B", "kB", "MB", "GB"];
  let size = value;
  let unit = 0;
  while (size >= 999.5 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit === 0 || size >= 99.5 ? size.toFixed(0) : size.toFixed(1)} ${units[unit]}`;
}

export function moment(seconds) {
  if (!isNumber(seconds)) return NONE;
  const date = new Date(seconds * 1000);
  if (Number.isNaN(date.getTime())) return NONE;
  const pad = (value) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} `
    + `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

// Text of any JSON value: a recording may hold anything where a text is expected.
export function asText(value) {
  if (typeof value === "string") return value;
  if (value === null || value === undefined) return "";
  return JSON.stringify(value, null, 2) ?? "";
}

export function oneLine(value, limit = 200) {
  const text = asText(value).slice(0, limit * 2).replace(/\s+/g, " ").trim();
  return text.length > limit ? `${text.slice(0, limit)}…` : text;
}
