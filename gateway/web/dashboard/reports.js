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
    const asked = [...new Set([...groups, ...Object.keys(filters)])];
    const all = since.length > 10 ? await this.ask(asked, since, until) : await this.ofDays(asked, since, until);
    const rows = all.filter((row) => Object.entries(filters).every(([name, value]) => row[name] === value));
    return added(rows, groups);
  }

  async ofDays(groups, since, until) {
    const recent = day(1);
    const [past, now] = await Promise.all([
      since < recent ? this.ofPast(groups, since, until < recent ? until : day(2)) : [],
      until >= recent ? this.ask(groups, since < recent ? recent : since, until) : [],
    ]);
    return [...past, ...now];
  }

  async ofPast(groups, since, until) {
    const question = JSON.stringify([groups, since, until]);
    const known = this.past.get(question);
    if (known && Date.now() - known.at < PAST_EVERY_MS) return known.rows;
    const rows = await this.ask(groups, since, until);
    this.past.set(question, { at: Date.now(), rows });
    return rows;
  }

  async ask(groups, since, until) {
    return (await get("usage", { group_by: groups.join(","), since, until }, this.signal)).data;
  }
}
