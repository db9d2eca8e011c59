// The team of a key: one of those that there are, none, or a new one, which is made when the form is sent.

import { every, post } from "./api.js";
import { fill, h } from "./dom.js";

const NEW = "+new"; // no name begins so

/** `mine`: a member chooses among these. `control` (a select), `fresh` (the field for a new name), `read()` the chosen name or null, `make()` a new team. */
export function teamChoice(chosen, can, mine = null) {
  const control = h("select");
  const name = h("input", {
    type: "text",
    name: "new-team",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "Name of the new team",
    "aria-label": "Name of the new team",
    pattern: "[a-z0-9][a-z0-9_.\\-]{0,62}",
    title: "Small letters, digits, - _ . (at most 63)",
    hidden: true,
  });
  const options = (names) => {
    const known = [...new Set([...names, ...(chosen ? [chosen] : [])])].sort();
    fill(
      control,
      h("option", { value: "" }, "no team"),
      known.map((each) => h("option", { value: each }, each)),
      can("POST /admin/api/teams") && h("option", { value: NEW }, "New team …"),
    );
  };
  if (mine) {
    fill(control, mine.length > 1 && h("option", { value: "" }, "choose one"), mine.map((each) => h("option", { value: each }, each)));
    control.required = true;
    return { control, fresh: null, read: () => control.value || null, make: async () => {} };
  }
  options([]);
  control.value = chosen ?? "";
  every("teams", {}).then(
    ({ found }) => {
      const before = control.value;
      options(found.map((team) => team.name));
      control.value = before;
    },
    () => {}, // then only the present one can be chosen
  );
  control.addEventListener("change", () => {
    name.hidden = control.value !== NEW;
    name.required = !name.hidden;
    if (!name.hidden) name.focus();
  });
  const read = () => (control.value === NEW ? name.value.trim() : control.value || null);
  return {
    control,
    fresh: name,
    read,
    make: async () => {
      if (control.value !== NEW) return;
      chosen = (await post("teams", { name: name.value.trim(), quotas: [] })).name;
      options([...control.options].map((each) => each.value).filter((value) => value && value !== NEW));
      control.value = chosen; // made once, also where the key is then refused
      name.hidden = true;
      name.required = false;
    },
  };
}
