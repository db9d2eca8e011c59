// Tables as files of comma-separated values (RFC 4180), for spreadsheets.

import { h } from "./dom.js";

// Names come from clients; a spreadsheet would run a text that begins like a formula.
// As gateway/reports/csv_text.py: OWASP, "CSV Injection".
const FORMULA = /^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/;

function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = FORMULA.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const textOf = (shown) => h("span", null, shown).textContent;

/** The columns of the file for one of a table: those of its `saved`, each {title, of(row)}, else one with what it is sorted by. */
const savedOf = (column) => column.saved ?? [{ title: column.title, of: (row) => (column.sort ? column.sort(row) : textOf(column.show(row))) }];

/** A moment (Unix time in seconds, or a text of a time) as ISO 8601 in UTC, whatever zone the page shows. */
export const isoTime = (time) => (time === null || time === undefined ? null : new Date(typeof time === "number" ? time * 1000 : time).toISOString());

/** A line of titles, then one for each row. */
export function tableAsCsv(columns, rows) {
  const saved = columns.flatMap(savedOf);
  const lines = [saved.map(({ title }) => title), ...rows.map((row) => saved.map(({ of }) => of(row)))];
  return lines.map((line) => `${line.map(cell).join(",")}\r\n`).join("");
}

/** Hand a text to the browser as a file of this name. */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const link = h("a", { href: url, download: name.toLowerCase().replaceAll(/[^a-z0-9.-]+/g, "-"), hidden: true });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
