// Sums of usage, asked for as rarely as can be: sums over many days of many keys are dear, and the days that are over
// hardly move. A call that ends late counts in the day in which it began, so yesterday is not over yet.

import { get } from "./api.js";
import { day } from "./format.js";
import { folded } from "./people.js";
import { firstDay } from "./range.js";
import { added } from "./sums.js";

const PAST_EVERY_MS = 600_000;
export const MINUTE = "2026-11-20T14:05";

export class Reports {
  constructor(signal) {
    this.signal = signal;
    this.past = new Map(); // by question: {at, rows}
    this.minutesFrom = ""; // before this minute not every call is known by minute
  }

  /** The sums for a range and its comparison: by day, from the day `first` at the latest, and by its minutes, hours or days (`steps`). */
  async ofRange(range, filters = {}, first = firstDay(range)) {
    const { unit, since, until, compared } = range;
    const last = [until.slice(0, 10), day()].sort()[1];
    const finer = [...new Set([unit, compared.unit])].filter((each) => each !== "day");
    const [days, ...found] = await Promise.all([
      this.by(["day"], first, last, filters),
      ...finer.map((each) => {
        const from = compared.unit === each ? compared.before.since : since;
        const to = unit === each || each === "minute" ? until : compared.now.until;
        return this.by([each], from, to.length > 10 ? to : `${to}T23`, filters);
      }),
    ]);
    const of = { day: days, ...Object.fromEntries(finer.map((each, place) => [each, found[place]])) };
    return { days, steps: of[unit], compared: of[compared.unit] };
  }

  /** The rows by `groups` (a list of names) of these days, hours or minutes, of what `filters` (name: value) leaves. */
  async by(groups, since, until, filters = {}) {
    const isOfHours = since.length > 10;
    const [recent, past] = isOfHours ? [`${day(1)}T00`, `${day(2)}T23`] : [day(1), day(2)];
    return added(await this.split(groups, since, until, filters, recent, past), groups);
  }

  /** The rows of the keys of an owner. */
  async keysOf(owner, { since, until }, filters) {
    return (await this.by(["owner", "key"], since, until, filters)).filter((row) => row.owner === owner);
  }

  /** The rows by step of a range of each of these names of a group. */
  async ofEach(names, group, { unit, since, until }, filters = {}) {
    const found = await Promise.all(names.map((name) => this.by([unit], since, until, { ...filters, [group]: name })));
    return found.flatMap((rows, place) => rows.map((row) => ({ ...row, [group]: names[place] })));
  }

  /** The rows in two parts: those before `recent`, which end with `end`, are kept for a while. */
  async split(groups, since, until, filters, recent, end) {
    const [past, now] = await Promise.all([
      since < recent ? this.ofPast(groups, since, until < recent ? until : end, filters) : [],
      until >= recent ? this.ask(groups, since < recent ? recent : since, until, filters) : [],
    ]);
    return [...past, ...now];
  }

  async ofPast(groups, since, until, filters) {
    const question = JSON.stringify([groups, since, until, filters]);
    const known = this.past.get(question);
    if (known && Date.now() - known.at < PAST_EVERY_MS) return known.rows;
    const rows = await this.ask(groups, since, until, filters);
    this.past.set(question, { at: Date.now(), rows });
    return rows;
  }

  async ask(groups, since, until, filters) {
    const isOfMinutes = since.length === MINUTE.length;
    const found = await get(isOfMinutes ? "minutes" : "usage", { group_by: groups.map((name) => (name === "owner" ? "person" : name)).join(",") || ",", since, until, ...filters }, this.signal);
    if (isOfMinutes) this.minutesFrom = found.since.slice(0, MINUTE.length);
    return groups.includes("owner") ? found.data.map(({ person, ...row }) => ({ ...row, owner: folded(person) })) : found.data;
  }
}

/** Where a busy gateway has fewer minutes than the range. */
export const minutesNote = ({ unit, since }, { minutesFrom }) => (unit === "minute" && minutesFrom > since ? `Before ${minutesFrom.slice(11)} not every call is in the minutes: there were too many.` : "");
