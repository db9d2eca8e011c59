// The statement of a month, to print or as a file: who spent what, what is billed, what differs and why.

import { noteSettings } from "./address.js";
import { get, getCsv } from "./api.js";
import { causeList } from "./bill_words.js";
import { fill, h } from "./dom.js";
import { NOTHING, count, day, many, minute, monthInWords, signed, usd, zoneOf } from "./format.js";
import { monthStart, shifted } from "./range.js";
import { empty, into } from "./states.js";
import { Table } from "./table.js";
import { sumOf } from "./table_parts.js";

const MONTHS_SHOWN = 13;
const MONTH = /^\d{4}-(0[1-9]|1[0-2])$/;

/** The last months, the running one first. */
function months() {
  const found = [day().slice(0, 7)];
  while (found.length < MONTHS_SHOWN) found.push(shifted(monthStart(`${found.at(-1)}-01`), -1).slice(0, 7));
  return found;
}

const spender = (row) => row.person || row.key;
const number = (title, name) => ({ title, isNumber: true, sort: (row) => row[name], show: (row) => count(row[name]) });

const COLUMNS = [
  { title: "Person, or key without an owner", class: "mono", sort: spender, show: (row) => [spender(row), !row.person && row.key && h("span", { class: "tag" }, "key")] },
  { title: "Team", class: "mono", sort: (row) => row.team ?? "", show: (row) => row.team || (row.isSum ? "" : NOTHING) },
  number("Requests", "requests"),
  number("Tokens", "total_tokens"),
  { title: "Spent", isNumber: true, sort: (row) => row.cost_usd, show: (row) => [usd(row.cost_usd), row.unpriced > 0 && h("span", { class: "unknown", title: `The cost of ${many(row.unpriced, "call")} is unknown` }, " + ?")] },
];

const billOf = (bill, causes) =>
  h(
    "section",
    { class: "panel", data: { bill: bill.upstream } },
    h("h3", { class: "mono" }, bill.upstream),
    h("p", null, "Billed ", h("b", { data: { value: bill.bill_usd } }, usd(bill.bill_usd)), ", recorded ", h("b", { data: { value: bill.recorded_usd } }, usd(bill.recorded_usd)), ", difference ", h("b", { data: { value: bill.difference_usd } }, signed(bill.difference_usd, usd)), "."),
    causeList(bill.causes, causes),
    h("p", { class: "note" }, `Read ${minute(bill.read_at)} ${zoneOf(new Date(bill.read_at))}.`),
  );

export function statementPart(place, { signal, query, role, team }) {
  const known = months();
  const asked = query.get("month") ?? "";
  const names = MONTH.test(asked) && !known.includes(asked) ? [...known, asked] : known;
  let month = names.includes(asked) ? asked : known[0];
  const [title, shown] = [h("h2", { id: "statement-title" }), h("div", { class: "statement" })];
  const table = new Table(COLUMNS, {
    caption: "Who spent what",
    name: (row) => `${spender(row)} ${row.team}`,
    sort: 4,
    none: "Nobody has spent anything in this month.",
    total: (rows) => ({ ...sumOf("requests", "total_tokens", "unpriced", "cost_usd")(rows), person: "", key: "", team: "", isSum: true }),
    whole: () => getCsv("statement", { month }, signal),
  });

  const look = () =>
    into(
      shown,
      signal,
      async () => {
        const mine = month;
        const found = await get("statement", { month }, signal);
        if (mine !== month) return; // another one was chosen meanwhile
        fill(title, `Statement of ${monthInWords(month)}`, role === "lead" && ` · ${team}`);
        fill(
          shown,
          h("p", { class: "note" }, `${found.since} to ${found.until}, in UTC.`),
          found.notes.length > 0 && h("ul", { class: "note notes" }, found.notes.map((note) => h("li", null, note))),
          h("div", { class: "panel flush" }, table.node),
          found.bills.length > 0
            ? [h("h3", null, "Bill of the providers"), h("div", { class: "bills" }, found.bills.map((bill) => billOf(bill, found.causes)))]
            : role !== "lead" && empty("No bill is read", "The statement has the gateway’s records alone."),
        );
        table.show(found.spent);
      },
      look,
    );

  const choice = h(
    "select",
    {
      "aria-label": "Month",
      name: "month",
      value: month,
      onchange: (event) => {
        month = event.target.value;
        noteSettings("statement", { month });
        look();
      },
    },
    names.map((name) => h("option", { value: name }, monthInWords(name))),
  );
  fill(
    place,
    h(
      "section",
      { "aria-labelledby": "statement-title" },
      h("div", { class: "bar" }, title, choice, h("button", { type: "button", id: "print", onclick: () => print() }, "Print")),
      shown,
    ),
  );
  look();
}
