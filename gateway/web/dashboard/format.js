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

/** A number with its sign, in the words of `said`. */
export const signed = (number, said) => (number > 0 ? `+${said(number)}` : number < 0 ? `−${said(-number)}` : said(0));

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

const ZONE_KEPT_AS = "gateway-zone";
/** Whether times are shown in the zone of this browser; days and hours of sums and quotas are UTC's in any case. */
export const isLocal = () => localStorage.getItem(ZONE_KEPT_AS) === "local";
export const switchZone = () => localStorage.setItem(ZONE_KEPT_AS, isLocal() ? "utc" : "local");

const ahead = (date) => (isLocal() ? -date.getTimezoneOffset() : 0);
/** The name of the zone in which a time is shown: "UTC", "UTC+9", "UTC-3:30". */
export function zoneOf(date = new Date()) {
  const minutes = ahead(date);
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return minutes ? `UTC${minutes < 0 ? "−" : "+"}${hours}${rest ? `:${String(rest).padStart(2, "0")}` : ""}` : "UTC";
}
/** The same moment as a date whose UTC is the shown time. */
const asShown = (date) => new Date(date.getTime() + ahead(date) * 60_000);
const isoText = (date) => asShown(date).toISOString().replace("T", " ");
/** A minute in UTC (2026-11-20T14:05) as a field for a time shows it, and back. */
export const toField = (text) => (text ? asShown(new Date(`${text}:00Z`)).toISOString().slice(0, 16) : "");
export const fromField = (text) => (text && isLocal() ? new Date(text).toISOString().slice(0, 16) : text.slice(0, 16));
const asDate = (time) => new Date(typeof time === "number" ? time * 1000 : time);

/** A Unix time in seconds, or a text of a time. */
export const moment = (time) => (time === null || time === undefined ? NOTHING : isoText(asDate(time)).slice(0, 19));
export const clock = (time) => isoText(asDate(time)).slice(11, 19);
/** The same with its zone. */
export const fullMoment = (time) => (time === null || time === undefined ? NOTHING : `${moment(time)} ${zoneOf(asDate(time))}`);
/** The time of today, or a day and a time: 14:32:05, 11-23 14:32:05. */
export const recent = (time) => (moment(time).startsWith(moment(Date.now() / 1000).slice(0, 10)) ? clock(time) : moment(time).slice(5));
export const minute = (time) => (time === null || time === undefined ? NOTHING : isoText(asDate(time)).slice(0, 16));

/** When something will happen within a day, week or month: "at 17:40", "today", "on Thursday", "on the 27th". */
export function momentInWords(date, per, today = day()) {
  if (per === "day") return `at ${isoText(date).slice(11, 16)}`;
  if (isoText(date).startsWith(today)) return "today";
  if (per === "week") return `on ${WEEKDAYS[asShown(date).getUTCDay()]}`;
  const number = asShown(date).getUTCDate();
  const ending = number > 10 && number < 20 ? "th" : (["th", "st", "nd", "rd"][number % 10] ?? "th");
  return `on the ${number}${ending}`;
}

/** The UTC day a number of days before today: 2026-11-20. */
export const day = (before = 0) => new Date(Date.now() - before * DAY_MS).toISOString().slice(0, 10);

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const LONG_MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const WEEKDAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/** A day (2026-11-20), an hour (2026-11-20T14) or a minute (2026-11-20T14:05) in words. */
export function stepInWords(text) {
  const date = text.length > 10 ? asShown(new Date(`${text.slice(0, 13)}:${text.slice(14) || "00"}:00Z`)) : new Date(`${text}T00:00:00Z`);
  const day = `${WEEKDAYS[date.getUTCDay()]}, ${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}`;
  return text.length > 10 ? `${stepShort(text)}, ${day}` : day;
}

/** A month (2026-11) in words. */
export const monthInWords = (text) => `${LONG_MONTHS[Number(text.slice(5)) - 1]} ${text.slice(0, 4)}`;

/** The minute, hour or day of a row. */
export const stepOf = (row) => row.minute ?? row.hour ?? row.day;

export function stepShort(text) {
  if (text.length > 10 && isLocal()) return isoText(new Date(`${text.slice(0, 13)}:${text.slice(14) || "00"}:00Z`)).slice(11, 16);
  if (text.length === 16) return text.slice(11);
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
