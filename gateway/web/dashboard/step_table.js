// The numbers of a chart as a table: a row for each day or hour.

import { fill, h } from "./dom.js";
import { NUMBERS, total } from "./sums.js";
import { Table } from "./table.js";

/** A table of sums by day or hour. */
function stepTable(unit) {
  const title = unit[0].toUpperCase() + unit.slice(1);
  const columns = [{ title, sort: (row) => row[unit], show: (row) => row[unit].replace("T", " ") }, ...NUMBERS];
  return new Table(columns, { caption: `Usage by ${unit}`, name: (row) => row[unit], sort: 0, total });
}

/** The table behind a summary, of another `make(unit)` where one is given. */
export class StepTable {
  constructor(make = stepTable) {
    this.make = make;
    this.place = h("div");
    this.node = h("details", { class: "as-table" }, h("summary", null, "The same as a table"), this.place);
  }

  show(unit, rows) {
    if (this.unit !== unit) {
      this.unit = unit;
      this.table = this.make(unit);
      fill(this.place, this.table.node);
    }
    this.table.show(rows);
  }
}
