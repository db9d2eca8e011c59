// A refused request as a line of a table: when, whose, why.

import { isoTime } from "./csv.js";
import { h } from "./dom.js";
import { NOTHING, fullMoment, recent } from "./format.js";

/** The model as the client named it. */
export const modelOf = (row) => row.requested_model ?? row.model ?? "";

export const REFUSAL_COLUMNS = [
  { title: "Time", class: "moment", saved: [{ title: "time", of: (row) => isoTime(row.at) }, { title: "id", of: (row) => row.id }], sort: (row) => row.at, show: (row) => h("span", { title: fullMoment(row.at) }, recent(row.at)) },
  {
    title: "Refused with",
    saved: ["status", "code", "limit"].map((title) => ({ title, of: (row) => row[title] })),
    sort: (row) => row.code,
    show: (row) => [h("span", { class: "pill full" }, row.status), " ", h("code", null, row.code ?? NOTHING)],
  },
  { title: "Why", class: "why-cell", sort: (row) => row.message, show: (row) => row.message },
  { title: "Model", class: "mono clip", sort: modelOf, show: (row) => modelOf(row) || NOTHING },
  { title: "Key", class: "mono", sort: (row) => row.key ?? "", show: (row) => row.key ?? "unknown" },
];
