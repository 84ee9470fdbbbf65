// Figures as people read them: the same words as the commands use.

const grouped = new Intl.NumberFormat("en-US");
export const whole = (number) => grouped.format(number);
export const plural = (number, thing) => `${whole(number)} ${thing}${number === 1 ? "" : thing.endsWith("tch") ? "es" : "s"}`;

export function count(number) {
  if (number < 10_000) return whole(number);
  return number < 10_000_000 ? `${whole(Math.round(number / 1e3))}k` : `${whole(Math.round(number / 1e6))}M`;
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let value = bytes;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000) return unit === "B" || value >= 100 ? `${Math.round(value)} ${unit}` : `${value.toFixed(1)} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} TB`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.0005) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1).replace(/\.0$/, "")} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min${Math.round(seconds % 60) ? ` ${Math.round(seconds % 60)} s` : ""}`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
  return `${Math.floor(hours / 24)} days`;
}

const two = (number) => String(number).padStart(2, "0");

/** A moment in local time; without the date if it is today. */
export function moment(iso) {
  if (!iso) return "–";
  const at = new Date(iso), now = new Date();
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return at.toDateString() === now.toDateString() ? time : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

/** The same, short: without the year, for small places. */
export const shortMoment = (iso) => moment(iso).replace(/^\d{4}-/, "");

export const secondsBetween = (from, to) => (Date.parse(to) - Date.parse(from)) / 1000;
