// Numbers, sizes and times as people read them.

const GROUPED = new Intl.NumberFormat("en-GB");
const SHORT = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 3, notation: "compact" });

export const NONE = "–";
const known = (value) => value !== null && value !== undefined && value !== "" && !Number.isNaN(Number(value));

export const count = (value) => (known(value) ? GROUPED.format(Number(value)) : NONE);

/** Short where space is: 12.3K. */
export const short = (value) => {
  if (!known(value)) return NONE;
  return Math.abs(value) < 10_000 ? GROUPED.format(Math.round(value)) : SHORT.format(value);
};

export const rate = (value) => {
  if (!known(value)) return NONE;
  const number = Number(value);
  if (number === 0) return "0/s";
  if (Math.abs(number) < 10) return `${number.toFixed(1)}/s`;
  return `${number < 10_000 ? GROUPED.format(Math.round(number)) : SHORT.format(number)}/s`;
};

export const bytes = (value) => {
  if (!known(value)) return NONE;
  let size = Number(value);
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(size) < 1024 || unit === "TiB") {
      return `${unit === "B" || size >= 100 ? Math.round(size) : size.toFixed(1)} ${unit}`;
    }
    size /= 1024;
  }
};

/** A length of time: 3 d 4 h, 12 min 5 s, 80 ms. */
export const duration = (ms) => {
  if (!known(ms)) return NONE;
  const value = Number(ms);
  if (value < 1000) return `${Math.round(value)} ms`;
  const seconds = Math.round(value / 1000);
  const parts = [
    [Math.floor(seconds / 86_400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [seconds % 60, "s"],
  ].filter(([number]) => number);
  return parts.slice(0, 2).map(([number, unit]) => `${number} ${unit}`).join(" ");
};

export const ago = (ms) => {
  if (!known(ms)) return NONE;
  const past = Date.now() - Number(ms);
  return past < 2000 ? "now" : `${duration(past)} ago`;
};

/** A moment, to the second and in the reader's zone; with milliseconds where two may be close. */
export const moment = (ms, exact = false) => {
  if (!known(ms) || Number(ms) <= 0) return NONE;
  const at = new Date(Number(ms));
  if (Number.isNaN(at.getTime())) return NONE;
  const pad = (number, digits = 2) => String(number).padStart(digits, "0");
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  const time = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  return `${day} ${time}${exact ? `.${pad(at.getMilliseconds(), 3)}` : ""}`;
};

export const percent = (part, whole) => (whole > 0 ? Math.min(100, (100 * part) / whole) : 0);

/** "1 key", "2 keys". */
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${Number(number) === 1 ? one : many}`;

/** The name as it is shown: the default exchange has none, and a name may hold what cannot be seen. */
export const shownName = (name) =>
  String(name).replace(/[\u0000-\u001f\u007f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (sign) =>
    `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
