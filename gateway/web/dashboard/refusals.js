// What the gateway itself refused, as far as its metrics say it: why, and whom. Such calls have no record.

import { h } from "./dom.js";
import { NOTHING, count } from "./format.js";
import { empty } from "./states.js";
import { reason } from "./words.js";

/** The refusals in a live sample. */
export function refusals(sample) {
  const reasons = Object.entries(sample.rejections)
    .filter(([, number]) => number > 0)
    .sort((one, other) => other[1] - one[1]);
  const who = [...sample.refused].sort((one, other) => other.requests - one.requests).slice(0, 20);
  if (!reasons.length) return empty("Nothing was refused", "since the gateway started.");
  return h(
    "div",
    { class: "columns" },
    h(
      "ul",
      { class: "reasons" },
      reasons.map(([name, number]) =>
        h(
          "li",
          { data: { reason: name } },
          h("b", { class: "figure-small" }, count(number)),
          h("span", null, h("code", null, name), h("br"), h("small", null, reason(name))),
        ),
      ),
    ),
    who.length > 0 &&
      h(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": "Refused, by key" },
        h(
          "table",
          null,
          h(
            "thead",
            null,
            h(
              "tr",
              null,
              ["Key", "Model", "Status"].map((name) => h("th", { scope: "col" }, name)),
              h("th", { scope: "col", class: "number" }, "Times"),
            ),
          ),
          h(
            "tbody",
            null,
            who.map((row) =>
              h(
                "tr",
                null,
                h(
                  "th",
                  { scope: "row", class: "mono" },
                  row.key && row.key !== "other"
                    ? h("a", { href: `#keys/${encodeURIComponent(row.key)}` }, row.key)
                    : row.key || "no key",
                ),
                h("td", { class: "mono" }, row.model || NOTHING),
                h("td", null, row.status),
                h("td", { class: "number" }, count(row.requests)),
              ),
            ),
          ),
        ),
      ),
  );
}
