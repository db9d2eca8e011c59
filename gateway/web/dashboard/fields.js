// The parts of forms.

import { h } from "./dom.js";

/** A control with its label, a hint, and a place for what is wrong with it. */
export function field(name, title, control, hint) {
  const id = `field-${name.replaceAll(".", "-")}`;
  control.id = id;
  control.name = name;
  const said = h("span", { class: "trouble", id: `${id}-trouble`, role: "alert" });
  control.setAttribute("aria-describedby", `${id}-trouble`);
  return h(
    "div",
    { class: "field", data: { param: name } },
    h("label", { for: id }, title),
    control,
    hint && h("small", null, hint),
    said,
  );
}

export const input = (value, more = {}) =>
  h("input", { type: "text", autocomplete: "off", spellcheck: "false", value: value ?? "", ...more });
/** One of `options`: titles by value. */
export const choice = (options, value, more = {}) =>
  h(
    "select",
    { value, ...more },
    Object.entries(options).map(([name, title]) => h("option", { value: name }, title)),
  );

/** The patterns of models in a text; all of them for none. */
export function modelsOf(text) {
  const given = text.split(/[\s,]+/).filter(Boolean);
  return given.length ? given : ["*"];
}

/** A list of quotas (quota_rows.js) as a part of a form. */
export const quotasField = (title, quotas, param = "quotas") =>
  h(
    "fieldset",
    { data: { param } },
    h("legend", null, title),
    quotas.node,
    h("span", { class: "trouble", role: "alert" }),
  );
