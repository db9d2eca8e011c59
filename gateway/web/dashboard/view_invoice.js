// A provider's invoice beside the gateway's own sums, by day and model: what differs, and why it may.

import { Refused, get, post } from "./api.js";
import { attempt } from "./dialog.js";
import { fill, h } from "./dom.js";
import { NOTHING, count, signed, usd } from "./format.js";
import { poll } from "./poll.js";
import { empty } from "./states.js";
import { Table } from "./table.js";
import { filterField } from "./table_parts.js";

const MOST_BYTES = 8_000_000;
const known = (number, said) => (number === null ? h("span", { class: "unknown" }, "unknown") : said(number));

/** Three columns of a measure: ours, theirs and the difference, with its share of theirs. */
const compared = (title, name, said) => [
  { title: `${title}, ours`, isNumber: true, sort: (row) => row[`${name}_ours`], show: (row) => known(row[`${name}_ours`], said) },
  { title: "theirs", hint: `${title} of the invoice`, isNumber: true, sort: (row) => row[`${name}_theirs`], show: (row) => known(row[`${name}_theirs`], said) },
  {
    title: "difference",
    hint: `${title}: ours minus theirs, and its share of theirs`,
    isNumber: true,
    sort: (row) => row[`${name}_difference`],
    show: (row) => {
      const [difference, share] = [row[`${name}_difference`], row[`${name}_percent`]];
      if (difference === null) return NOTHING;
      return [h("span", { class: difference ? "bad" : null }, signed(difference, said)), share !== null && difference !== 0 && h("small", null, ` ${signed(share, (part) => `${part.toFixed(2)} %`)}`)];
    },
  },
];

const COLUMNS = [
  { title: "Day and model", class: "mono", sort: (row) => `${row.day} ${row.model}`, show: (row) => (row.day ? `${row.day} ${row.model}` : "") },
  ...compared("Cost", "cost_usd", usd),
  ...compared("Tokens", "total_tokens", count),
  ...compared("Requests", "requests", count),
  { title: "Why", class: "why-cell", sort: (row) => row.why.length, show: (row) => (row.why.length ? h("ul", { class: "plain" }, row.why.map((text) => h("li", null, text))) : "They agree.") },
];

export function invoice(main, { can, signal }) {
  const text = h("textarea", { id: "invoice-text", rows: "8", spellcheck: "false", placeholder: "date,model,input_tokens,output_tokens,num_model_requests,amount_value" });
  const file = h("input", { type: "file", id: "invoice-file", accept: ".csv,.json,.txt,text/csv,application/json" });
  const upstream = h("select", { id: "invoice-upstream" }, h("option", { value: "" }, "all upstreams"));
  const [since, until] = ["From", "To"].map((label) => h("input", { type: "date", "aria-label": label }));
  const trouble = h("p", { class: "trouble", role: "alert" });
  const send = h("button", { type: "submit", class: "primary" }, "Compare");
  const place = h("div");
  let asked = null;
  let result = null;

  const table = new Table(COLUMNS, {
    caption: "Comparison with the invoice",
    name: (row) => `${row.day} ${row.model}`,
    sort: 0,
    isDown: false,
    filter: (row, part) => [row.day, row.model, ...row.names, ...row.why].some((each) => each.toLowerCase().includes(part)),
    total: () => ({ ...result.total, day: "" }),
    whole: () => post("invoice?format=csv", asked),
  });

  function show() {
    const { data, notes, since: first, until: last } = result;
    const differing = data.filter((row) => ["cost_usd", "total_tokens", "requests"].some((name) => row[`${name}_difference`])).length;
    fill(
      place,
      h(
        "section",
        { "aria-labelledby": "comparison-title" },
        h("div", { class: "bar" }, h("h2", { id: "comparison-title", tabindex: "-1" }, first ? `${first} to ${last}` : "Nothing to compare"), filterField("Filter by day, model, reason", (value) => table.filter(value))),
        h("p", { class: "note", role: "status", data: { differing } }, data.length ? `${count(differing)} of ${count(data.length)} days and models differ.` : ""),
        notes.length > 0 && h("ul", { class: "note notes" }, notes.map((note) => h("li", null, note))),
        data.length ? h("div", { class: "panel flush" }, table.node) : empty("The file and the gateway have no day in common", ...notes),
      ),
    );
    table.show(data);
    place.querySelector("#comparison-title").focus();
  }

  async function compare() {
    const content = file.files.length ? await file.files[0].text() : text.value;
    if (!content.trim()) throw new Refused(0, { message: "Choose the file of the invoice, or paste its text." });
    if (content.length > MOST_BYTES) throw new Refused(0, { message: "The text has more than 8 MB: export fewer days, or use gateway usage --compare." });
    asked = { text: content, upstreams: upstream.value ? [upstream.value] : [], since: since.value || null, until: until.value || null };
    result = await post("invoice", asked);
    show();
  }

  fill(
    main,
    h(
      "section",
      { "aria-labelledby": "invoice-title" },
      h("h2", { id: "invoice-title" }, "Invoice"),
      h("p", { class: "note" }, "The usage export of a provider (OpenAI’s usage or cost export, the log of one-api or new-api, or any CSV with a day, a model and numbers) beside the gateway’s sums. The file is compared and forgotten: nothing of it is kept."),
      h(
        "form",
        {
          class: "panel invoice",
          onsubmit: (event) => {
            event.preventDefault();
            attempt(send, trouble, compare);
          },
        },
        h("div", null, h("label", { for: "invoice-file" }, "File (CSV or JSON)"), file),
        h("div", null, h("label", { for: "invoice-text" }, "or its text"), text),
        h("div", { class: "bar" }, h("label", { for: "invoice-upstream" }, "Calls to "), upstream, h("span", null, "between "), since, h("span", null, " and "), until, send),
        trouble,
      ),
    ),
    place,
  );
  const names = async () => {
    const ofAll = can("GET /admin/api/upstreams");
    const { data } = await (ofAll ? get("upstreams", null, signal) : get("usage", { group_by: "upstream" }, signal));
    const found = data.map((row) => (ofAll ? row.name : row.upstream)).filter(Boolean);
    if (upstream.options.length === 1) upstream.append(...found.map((name) => h("option", { value: name }, name)));
  };
  poll(() => names().catch(() => false), 600_000, signal);
}
