// Sums of usage, asked for as rarely as can be: sums over many days of many keys are dear, and the days that are over
// hardly move. A call that ends late counts in the day in which it began, so yesterday is not over yet.

import { get } from "./api.js";
import { day } from "./format.js";
import { firstDay } from "./range.js";
import { added } from "./sums.js";

const PAST_EVERY_MS = 600_000;

export class Reports {
  constructor(signal) {
    this.signal = signal;
    this.past = new Map(); // by question: {at, rows}
  }

  /** The sums for a range and its comparison: by day, from the day `first` at the latest, and by its hours or days (`steps`). */
  async ofRange(range, filters = {}, first = firstDay(range)) {
    const { unit, since, until, compared } = range;
    const last = [until.slice(0, 10), day()].sort()[1];
    const from = compared.unit === "hour" ? compared.before.since : since;
    const [days, hours] = await Promise.all([
      this.by(["day"], first, last, filters),
      unit === "hour" || compared.unit === "hour" ? this.by(["hour"], from, until.length > 10 ? until : `${until}T23`, filters) : null,
    ]);
    return { days, steps: unit === "hour" ? hours : days, compared: compared.unit === "hour" ? hours : days };
  }

  /** The rows by `groups` (a list of names) of these days or hours, of what `filters` (name: value) leaves. */
  async by(groups, since, until, filters = {}) {
    const isOfHours = since.length > 10;
    const [recent, past] = isOfHours ? [`${day(1)}T00`, `${day(2)}T23`] : [day(1), day(2)];
    return added(await this.split(groups, since, until, filters, recent, past), groups);
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
    return (await get("usage", { group_by: groups.join(","), since, until, ...filters }, this.signal)).data;
  }
}
