// Several lists of the admin API as one, the newest first, a portion at a time and without an end.

import { get } from "./api.js";

const AT_ONCE = 100;

const timeOf = (row) => (typeof row.time === "number" ? row.time : Date.parse(row.time) / 1000);

/** `lists`: [{path, query, kind}]; each row gets the `kind` of its list. */
export class MergedPages {
  constructor(lists, signal, atOnce = AT_ONCE) {
    Object.assign(this, { signal, atOnce });
    this.lists = lists.map((list) => ({ ...list, rows: [], next: "" })); // next: null behind the last page
  }

  get isAtEnd() {
    return this.lists.every((list) => !list.rows.length && list.next === null);
  }

  /** The next rows, `number` at most. */
  async take(number = AT_ONCE) {
    const taken = [];
    while (taken.length < number) {
      await Promise.all(this.lists.filter((list) => !list.rows.length && list.next !== null).map((list) => this.fetch(list)));
      const [newest] = this.lists
        .filter((list) => list.rows.length)
        .sort((one, other) => timeOf(other.rows[0]) - timeOf(one.rows[0]));
      if (!newest) break;
      taken.push(newest.rows.shift());
    }
    return taken;
  }

  async fetch(list) {
    const page = await get(list.path, { ...list.query, limit: this.atOnce, before: list.next }, this.signal);
    list.rows = page.data.map((row) => ({ ...row, kind: list.kind }));
    list.next = page.next;
  }
}
