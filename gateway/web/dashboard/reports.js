// Sums of usage, asked for as rarely as can be: sums over many days of many keys are dear, and the days that are over
// hardly move. A call that ends late counts in the day in which it began, so yesterday is not over yet.

import { get } from "./api.js";
import { day } from "./format.js";
import { added } from "./sums.js";

const PAST_EVERY_MS = 600_000;

export class Reports {
  constructor(signal) {
    this.signal = signal;
    this.past = new Map(); // by question: {at, rows}
  }

  /** The rows by `groups` (a list of names) of these days or hours, of what `filters` (name: value) leaves. */
  async by(groups, since, until, filters = {}) {
    if (since.length > 10) return this.ask(groups, since, until, filters);
    return added(await this.ofDays(groups, since, until, filters), groups);
  }

  async ofDays(groups, since, until, filters) {
    const recent = day(1);
    const [past, now] = await Promise.all([
      since < recent ? this.ofPast(groups, since, until < recent ? until : day(2), filters) : [],
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
