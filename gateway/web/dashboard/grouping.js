// The grouping of a report: by key, the owner of keys, team, model, upstream, the user that clients name, one tag of theirs, or a label of keys.

import { address } from "./address.js";
import { h } from "./dom.js";
import { FILTERS } from "./filters.js";
import { switcher } from "./switcher.js";

const GROUPS = ["key", "owner", ...FILTERS.slice(1), "user"];
const NAMED = /^(tag|label):\S+$/;

export const isGroup = (name) => GROUPS.includes(name) || NAMED.test(name ?? "");
/** Whether sums by this group are kept by hour, too. */
export const hasHours = (group) => group !== "user" && !group.startsWith("tag:");

/** Whether sums by this group are known by minute. */
export const hasMinutes = (group) => FILTERS.includes(group);
/** Whether sums by this group are known by a unit of time: minute, hour or day. */
export const hasSteps = (group, unit) => unit === "day" || (unit === "minute" ? hasMinutes(group) : hasHours(group));

/** Whether the page, or the list of calls, can be narrowed to one of these: not to an owner or a label, which calls do not have. */
export const canNarrow = (group) => group !== "owner" && !group.startsWith("label:");

const OF_CALLS = ["key", "team", "model"]; // what sums by user or tag can be split by, besides properties of keys
const isOfCalls = (group) => group === "user" || group.startsWith("tag:");
const isOfKeys = (group) => group === "owner" || group.startsWith("label:");

/** Whether sums are known by both groups at once. `unit`: of the range, minute, hour or day. */
export function canPair(group, then, unit) {
  if (group === then || (isOfKeys(group) && isOfKeys(then)) || (isOfCalls(group) && isOfCalls(then))) return false;
  const [one] = [group, then].filter(isOfCalls);
  const other = one === group ? then : group;
  return (one === undefined || OF_CALLS.includes(other) || isOfKeys(other)) && hasSteps(group, unit) && hasSteps(then, unit);
}

/** The choice of a second group beside `group`; `tell` is given it, or an empty text for none. */
export function thenControl(group, then, unit, tell) {
  const names = GROUPS.filter((name) => canPair(group, name, unit));
  return h(
    "select",
    { name: "then", "aria-label": "Then group the table by", value: names.includes(then) ? then : "", onchange: (event) => tell(event.target.value) },
    h("option", { value: "" }, "alone"),
    names.map((name) => h("option", { value: name }, `then ${name}`)),
  );
}

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
      const typed = other.value.trim();
      const name = typed && !typed.includes(":") ? `tag:${typed}` : typed; // a bare name is that of a tag
      other.value = name;
      other.toggleAttribute("aria-invalid", Boolean(name) && !NAMED.test(name));
      if (!NAMED.test(name)) return;
      for (const each of buttons.children) each.setAttribute("aria-pressed", "false");
      tell(name);
    },
  });
  return [buttons, other];
}
