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

/** A line of titles, then one for each row. */
export function tableAsCsv(columns, rows) {
  const value = (column, row) => (column.sort ? column.sort(row) : textOf(column.show(row)));
  const lines = [columns.map((column) => column.title), ...rows.map((row) => columns.map((column) => value(column, row)))];
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
