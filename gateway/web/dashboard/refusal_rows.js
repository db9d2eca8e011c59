// A refused request as a line of a table: when, whose, why.

import { h } from "./dom.js";
import { NOTHING, moment } from "./format.js";

/** The model as the client named it. */
export const modelOf = (row) => row.requested_model ?? row.model ?? "";

export const REFUSAL_COLUMNS = [
  { title: "Time (UTC)", sort: (row) => row.at, show: (row) => moment(row.at) },
  { title: "Key", class: "mono", sort: (row) => row.key ?? "", show: (row) => row.key ?? "unknown" },
  { title: "Model", class: "mono clip", sort: modelOf, show: (row) => modelOf(row) || NOTHING },
  {
    title: "Refused with",
    sort: (row) => row.code,
    show: (row) => [h("span", { class: "pill full" }, row.status), " ", h("code", null, row.code ?? NOTHING)],
  },
  { title: "Why", class: "why-cell", sort: (row) => row.message, show: (row) => row.message },
];
