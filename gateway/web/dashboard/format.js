// Formats of numbers, money and times. An unknown amount is "unknown", never 0.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const DAY_MS = 86_400_000;

export const UNKNOWN = "unknown";
export const NOTHING = "–";

export const count = (number) => whole.format(number);
/** "1 key", "2 keys". */
export const many = (number, word) => `${whole.format(number)} ${word}${number === 1 ? "" : "s"}`;
export const compact = (number) => (Math.abs(number) < 10_000 ? whole.format(number) : short.format(number));

/** A rate with its significant digits. */
export function rate(number) {
  if (number === null) return NOTHING;
  if (number >= 1000) return compact(number);
  return number >= 100 ? whole.format(number) : number.toFixed(number && number < 1 ? 2 : 1);
}

export function usd(amount) {
  if (amount === null || amount === undefined) return UNKNOWN;
  if (amount === 0) return "$0";
  if (Math.abs(amount) < 0.0000005) return "< $0.000001";
  const places = Math.abs(amount) >= 1 ? 2 : Math.abs(amount) >= 0.01 ? 4 : 6;
  const digits = { minimumFractionDigits: 2, maximumFractionDigits: places };
  return `$${amount.toLocaleString("en", digits)}`;
}

/** A share in percent of 0 to 100: neither rounded to nothing nor to all. */
export function percent(part, all) {
  if (!all || !part) return "0 %";
  const share = (100 * part) / all;
  if (part === all) return "100 %";
  if (share < 0.1) return "< 0.1 %";
  if (share >= 99.5 && share < 100) return `${(Math.floor(share * 10) / 10).toFixed(1)} %`;
  return `${share < 10 ? share.toFixed(1) : Math.round(share)} %`;
}

/** How many decimals a step has. */
function decimals(step) {
  for (let places = 0; places < 6; places++) if (Math.abs(step * 10 ** places - Math.round(step * 10 ** places)) < 1e-6) return places;
  return 6;
}

/** Numbers of an axis whose lines are `step` apart: all with the same digits. */
export const axisCount = (number, step) => (step >= 1 ? compact(number) : Number.isInteger(number) ? whole.format(number) : "");
export const axisUsd = (number, step) => (4 * step >= 1000 ? `$${compact(number)}` : `$${number.toFixed(decimals(step) === 1 ? 2 : decimals(step))}`);
export function axisSpan(number, step) {
  if (4 * step <= 1) return `${Math.round(number * 1000)} ms`;
  return 4 * step < 10 ? `${number.toFixed(decimals(step))} s` : span(number);
}

/** A time span in seconds. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const rounded = Math.round(seconds);
  if (rounded < 100) return `${rounded} s`;
  const minutes = Math.round(rounded / 60);
  if (minutes < 100) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const isoText = (date) => date.toISOString().replace("T", " ");
const asDate = (time) => new Date(typeof time === "number" ? time * 1000 : time);

/** A Unix time in seconds, or a text of a time. */
export const moment = (time) => (time === null || time === undefined ? NOTHING : isoText(asDate(time)).slice(0, 19));
export const clock = (time) => isoText(asDate(time)).slice(11, 19);
/** The time of today, or a day and a time: 14:32:05, 11-23 14:32:05. */
export const recent = (time) => (moment(time).startsWith(day()) ? clock(time) : moment(time).slice(5));
export const minute = (time) => (time === null || time === undefined ? NOTHING : isoText(asDate(time)).slice(0, 16));

/** When something will happen within a day, week or month: "at 17:40", "today", "on Thursday", "on the 27th". */
export function momentInWords(date, per, today = day()) {
  if (per === "day") return `at ${isoText(date).slice(11, 16)}`;
  if (isoText(date).startsWith(today)) return "today";
  if (per === "week") return `on ${WEEKDAYS[date.getUTCDay()]}`;
  const number = date.getUTCDate();
  const ending = number > 10 && number < 20 ? "th" : (["th", "st", "nd", "rd"][number % 10] ?? "th");
  return `on the ${number}${ending}`;
}

/** The UTC day a number of days before today: 2026-11-20. */
export const day = (before = 0) => new Date(Date.now() - before * DAY_MS).toISOString().slice(0, 10);

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const WEEKDAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/** A day (2026-11-20) or an hour (2026-11-20T14) in words. */
export function stepInWords(text) {
  const date = new Date(`${text.slice(0, 10)}T00:00:00Z`);
  const day = `${WEEKDAYS[date.getUTCDay()]}, ${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}`;
  return text.length > 10 ? `${text.slice(11)}:00, ${day}` : day;
}

export function stepShort(text) {
  return text.length > 10 ? `${text.slice(11)}:00` : `${Number(text.slice(8))} ${MONTHS[Number(text.slice(5, 7)) - 1]}`;
}

/** An amount of a quota's unit; without the unit where another amount has it. */
export const bare = (unit, number) => (unit === "usd" ? usd(number) : count(number));

export function amount(unit, number) {
  if (unit === "usd") return usd(number);
  const word = unit === "parallel" ? "calls" : unit;
  return `${count(number)} ${number === 1 ? word.slice(0, -1) : word}`;
}

const PERIODS = { second: "second", minute: "minute", hour: "hour", day: "day", week: "week", month: "month" };

/** Whether a window begins and ends with the calendar. */
export const isCalendar = (row) => ["day", "week", "month"].includes(row.per);

/** A quota of the settings in a few words: "5,000 tokens per month". */
export function quotaWords(quota) {
  const unit = ["requests", "tokens", "usd"].find((name) => quota[name] !== undefined);
  const per = quotaName({ ...quota, unit }).replace(/^(requests|tokens|US dollars)/, "");
  return `${amount(unit, Number(quota[unit]))}${per}`;
}

/** The name of a quota, without its amount: "tokens per day for gpt-4*". */
export function quotaName(row) {
  const name = row.unit === "parallel" ? "calls at once" : row.unit === "usd" ? "US dollars" : row.unit;
  const per = !row.per ? "" : ` per ${PERIODS[row.per] ?? `${count(Number(row.per))} s`}`;
  return `${name}${per}${row.model ? ` for ${row.model}` : ""}`;
}
