// The grouping of a report: by key, team, model, upstream, the user that clients name, one tag of theirs, or a label of keys.

import { address } from "./address.js";
import { h } from "./dom.js";
import { FILTERS } from "./filters.js";
import { switcher } from "./switcher.js";

const GROUPS = [...FILTERS, "user"];
const NAMED = /^(tag|label):\S+$/;

export const isGroup = (name) => GROUPS.includes(name) || NAMED.test(name ?? "");
/** Whether sums by this group are kept by hour, too. */
export const hasHours = (group) => group !== "user" && !group.startsWith("tag:");

/** Whether the page, or the list of calls, can be narrowed to one of these: not to a label, which calls do not have. */
export const canNarrow = (group) => !group.startsWith("label:");

/** The calls of a user or with a tag, where a group is one of these; the page cannot be narrowed to it. */
export function callsOf(group, name) {
  if (group === "user") return address("calls", "", { user: name });
  return group.startsWith("tag:") ? address("calls", "", { tag: `${group.slice(4)}:${name}` }) : null;
}

/** The control; `tell` is given the group. */
export function groupControl(group, tell) {
  const buttons = switcher("Group by", Object.fromEntries(GROUPS.map((name) => [name, name])), group, (name) => {
    other.value = "";
    tell(name);
  });
  const other = h("input", {
    type: "text",
    class: "group-name",
    name: "group",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "tag:… or label:…",
    "aria-label": "Group by a tag or a label: tag:NAME or label:NAME",
    value: NAMED.test(group) ? group : "",
    onchange: () => {
      const name = other.value.trim();
      other.toggleAttribute("aria-invalid", Boolean(name) && !NAMED.test(name));
      if (!NAMED.test(name)) return;
      for (const each of buttons.children) each.setAttribute("aria-pressed", "false");
      tell(name);
    },
  });
  return [buttons, other];
}
