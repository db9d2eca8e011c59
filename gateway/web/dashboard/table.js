// A table that is sorted by its headings, filtered by a text, and shown a page at a time, however long it is; below it the sum.

import { download, tableAsCsv } from "./csv.js";
import { fill, h } from "./dom.js";
import { count } from "./format.js";

const PAGE = 50;
const DENSE = 10; // columns from which on headings are wrapped

/**
 * `columns`: {title, show(row) -> text or node, sort(row) -> number or text, isNumber, isExact (the cell holds
 * the result of `sort` as data), hint}. Downloads have the result of `sort`, or else the text of `show`.
 * `of`: {caption, name(row) -> the row's own, sort: place, isDown, filter(row, text) -> bool, href(row), none: text,
 * details(row) -> {title, node()} of what is shown below an opened row, or null; total(rows) -> the row of the sum, whose
 * numbers are shown at the end, but not the ones it lacks; saved(rows) -> the rows of the file, and savedColumns its
 * columns where they are others; whole() -> the text of the file, from the API}.
 */
export class Table {
  constructor(columns, of) {
    this.columns = columns;
    this.of = of;
    this.rows = [];
    this.text = "";
    this.page = 0;
    this.sortedBy = of.sort ?? null;
    this.isDown = of.isDown ?? true;
    this.body = h("tbody");
    this.head = h("tr");
    this.foot = h("div", { class: "pager" });
    const table = h("table", { class: columns.length >= DENSE ? "dense" : null }, h("caption", { class: "sr" }, of.caption), h("thead", null, this.head), this.body, (this.sums = h("tfoot")));
    // It scrolls by itself, so that the page need not; reachable by keyboard, as whatever scrolls has to be.
    this.scroll = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": of.caption }, table);
    this.node = h("div", null, this.scroll, this.foot);
    this.opened = new Set();
    new ResizeObserver(() => this.reveal()).observe(this.scroll);
  }

  show(rows) {
    this.rows = rows;
    this.draw();
  }

  filter(text) {
    this.text = text.trim().toLowerCase();
    this.page = 0;
    this.draw();
  }

  /** The column that the rows are sorted by is in sight, beside the first one, which stays. */
  reveal() {
    const cell = this.sortedBy ? this.head.cells[this.sortedBy] : null;
    const room = this.scroll.clientWidth;
    if (!cell || this.scroll.scrollWidth <= room) return;
    const first = this.head.cells[0].offsetWidth;
    const [left, right] = [cell.offsetLeft, cell.offsetLeft + cell.offsetWidth];
    const isSeen = left >= this.scroll.scrollLeft + first && right <= this.scroll.scrollLeft + room;
    if (!isSeen) this.scroll.scrollLeft = left - first; // no column is cut on its left
  }

  get found() {
    return this.text && this.of.filter ? this.rows.filter((row) => this.of.filter(row, this.text)) : this.rows;
  }

  sorted(rows) {
    const column = this.columns[this.sortedBy];
    if (!column?.sort) return rows;
    const sign = this.isDown ? -1 : 1;
    return [...rows].sort((one, other) => {
      const [a, b] = [column.sort(one), column.sort(other)];
      if (a === b) return 0;
      if (a === null || b === null) return a === null ? 1 : -1; // unknown values come last
      return (a < b ? -1 : 1) * sign;
    });
  }

  draw() {
    const rows = this.sorted(this.found);
    const pages = Math.max(1, Math.ceil(rows.length / PAGE));
    this.page = Math.min(this.page, pages - 1);
    const from = this.page * PAGE;
    fill(
      this.head,
      this.columns.map((column, place) => this.heading(column, place)),
    );
    const at = document.activeElement;
    const focused = this.body.contains(at) ? at.closest("tr")?.dataset.name : null;
    fill(
      this.body,
      rows.slice(from, from + PAGE).map((row) => [this.line(row), this.below(row)]),
    );
    if (!rows.length) {
      const said = this.text ? `Nothing matches “${this.text}”.` : (this.of.none ?? "Nothing here yet.");
      fill(this.body, h("tr", null, h("td", { colspan: this.columns.length, class: "none" }, said)));
    }
    if (at !== document.activeElement && this.body.contains(at)) at.focus({ preventScroll: true }); // of details that stay
    else if (focused)
      [...this.body.rows]
        .find((line) => line.dataset.name === focused)
        ?.querySelector("button, a")
        ?.focus();
    fill(this.sums, rows.length > 1 && this.of.total && this.sumLine(rows));
    fill(this.foot, rows.length > 0 && this.downloadButton(), pages > 1 && this.pager(rows.length, from, pages));
  }

  downloadButton() {
    const save = async () => {
      const whole = await this.of.whole?.().catch(() => null);
      download(`${this.of.caption}.csv`, whole ?? tableAsCsv(this.of.savedColumns ?? this.columns, this.sorted(this.of.saved?.(this.found) ?? this.found)));
    };
    const title = this.of.whole ? "All that the filters leave, not only what is shown, as CSV" : "All rows, as CSV";
    return h("button", { type: "button", class: "quiet csv", onclick: save, title }, "Download (CSV)");
  }

  heading(column, place) {
    const side = column.isNumber ? "number" : null;
    if (!column.sort) return h("th", { scope: "col", class: side, title: column.hint }, column.title);
    const isOurs = this.sortedBy === place;
    const order = isOurs ? (this.isDown ? "descending" : "ascending") : null;
    const turn = () => {
      this.isDown = isOurs ? !this.isDown : Boolean(column.isNumber);
      this.sortedBy = place;
      this.draw();
      this.head.cells[place].querySelector("button").focus();
      this.reveal();
    };
    return h(
      "th",
      { scope: "col", class: side, "aria-sort": order, title: column.hint },
      h(
        "button",
        { type: "button", class: "sort", onclick: turn },
        column.title,
        h("span", { class: "arrow", "aria-hidden": "true" }, isOurs ? (this.isDown ? "↓" : "↑") : ""),
      ),
    );
  }

  line(row) {
    const cells = this.columns.map((column, place) => {
      const shown = column.show(row);
      const value = (column.isNumber || column.isExact) && column.sort ? column.sort(row) : null;
      const props = { class: column.isNumber ? "number" : column.class, data: value === null ? {} : { value } };
      if (place) return h("td", props, shown);
      const href = this.of.href?.(row);
      const follow = (event) => event.currentTarget.setAttribute("href", this.of.href(row)); // the address has changed since
      const first = h("th", { ...props, scope: "row" }, href ? h("a", { class: "link", href, onclick: follow }, shown) : shown);
      first.title = first.textContent; // a long name is cut
      return first;
    });
    return h("tr", { data: { name: this.of.name(row) } }, cells);
  }

  /** The sum of all rows that the filter leaves, also those of other pages. */
  sumLine(rows) {
    const sum = this.of.total(rows);
    const cells = this.columns.slice(1).map((column) => {
      const value = column.isNumber && column.sort ? column.sort(sum) : undefined;
      const isKnown = value !== undefined && !Number.isNaN(value);
      return h("td", { class: column.isNumber ? "number" : null, data: isKnown ? { value } : {} }, isKnown && column.show(sum));
    });
    return h("tr", null, h("th", { scope: "row" }, `Total of ${count(rows.length)}`), cells);
  }

  /** The opened details below a row. */
  below(row) {
    const details = this.opened.has(this.of.name(row)) ? this.of.details?.(row) : null;
    return details && h("tr", { class: "below" }, h("td", { colspan: this.columns.length }, details.node()));
  }

  /** The button that opens and closes what is below a row. */
  opener(row) {
    const details = this.of.details?.(row);
    if (!details) return null;
    const name = this.of.name(row);
    const isOpen = this.opened.has(name);
    const turn = () => {
      if (!this.opened.delete(name)) this.opened.add(name);
      this.draw();
      [...this.body.rows].find((line) => line.dataset.name === name)?.querySelector(".opener")?.focus();
    };
    return h("button", { type: "button", class: "only opener", "aria-expanded": String(isOpen), onclick: turn }, details.title);
  }

  pager(all, from, pages) {
    const turn = (by) => () => {
      this.page += by;
      this.draw();
      this.foot.querySelector(`button:not([disabled], .csv)`)?.focus();
    };
    return [
      h("button", { type: "button", class: "quiet", disabled: this.page === 0, onclick: turn(-1) }, "Previous"),
      h("span", { role: "status" }, `${count(from + 1)} to ${count(Math.min(from + PAGE, all))} of ${count(all)}`),
      h("button", { type: "button", class: "quiet", disabled: this.page === pages - 1, onclick: turn(1) }, "Next"),
    ];
  }
}
