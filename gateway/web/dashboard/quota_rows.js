// Quotas in a form: any number of lines.

import { fill, h } from "./dom.js";
import { choice, input } from "./fields.js";

const UNITS = { requests: "requests", tokens: "tokens", usd: "US dollars" };
const PERS = { second: "second", minute: "minute", hour: "hour", day: "day", week: "week", month: "month", other: "… seconds" };

function quotaRow(quota, drop) {
  const unit = Object.keys(UNITS).find((name) => quota[name] !== undefined) ?? "tokens";
  const isOther = quota.per !== undefined && !(quota.per in PERS);
  const amount = input(quota[unit] ?? "", {
    type: "number",
    min: "0",
    step: "any",
    required: true,
    "aria-label": "How much",
    class: "amount",
  });
  const of = choice(UNITS, unit, { "aria-label": "Of what" });
  const per = choice(PERS, isOther ? "other" : (quota.per ?? "day"), { "aria-label": "Per" });
  const seconds = input(isOther ? quota.per : "", {
    type: "number",
    min: "1",
    "aria-label": "Seconds",
    class: "seconds",
    hidden: !isOther,
  });
  per.addEventListener("change", () => {
    seconds.hidden = per.value !== "other";
  });
  const model = input(quota.model, { placeholder: "all models", "aria-label": "For models", class: "model" });
  const node = h(
    "li",
    null,
    amount,
    of,
    h("span", null, "per"),
    per,
    seconds,
    h("span", null, "for"),
    model,
    quota.label && h("span", null, `for each ${quota.label}`),
    h("button", { type: "button", class: "quiet", "aria-label": "Remove this quota", onclick: () => drop(node) }, "✕"),
  );
  node.read = () => ({
    [of.value]: Number(amount.value),
    per: per.value === "other" ? Number(seconds.value) : per.value,
    ...(model.value.trim() ? { model: model.value.trim() } : {}),
    ...(quota.label ? { label: quota.label } : {}),
  });
  return node;
}

/** `node`, `read()` for the quotas shown, and `set(quotas)` for other ones. `without`: the text without any. */
export function quotaList(quotas, without) {
  const list = h("ul", { class: "quota-rows" });
  const none = h("p", { class: "trouble no-quota", role: "status" });
  const tell = () => fill(none, list.children.length ? "" : without);
  const drop = (row) => {
    row.remove();
    tell();
    add.focus();
  };
  const add = h(
    "button",
    {
      type: "button",
      class: "quiet",
      onclick: () => {
        const row = quotaRow({}, drop);
        list.append(row);
        tell();
        row.querySelector("input").focus();
      },
    },
    "+ Add a quota",
  );
  const set = (wanted) => {
    fill(
      list,
      wanted.map((quota) => quotaRow(quota, drop)),
    );
    tell();
  };
  set(quotas ?? []);
  return { node: h("div", null, list, none, add), read: () => [...list.children].map((row) => row.read()), set };
}
