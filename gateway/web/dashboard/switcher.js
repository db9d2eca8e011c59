// A choice among few, all of them in sight.

import { h } from "./dom.js";

/** Buttons of which one is pressed: `names` by the argument of `tell`. */
export function switcher(label, names, chosen, tell) {
  const buttons = Object.entries(names).map(([name, title]) =>
    h("button", { type: "button", "aria-pressed": String(name === chosen), data: { choice: name } }, title),
  );
  const node = h("div", { class: "switch", role: "group", "aria-label": label }, buttons);
  node.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    for (const each of buttons) each.setAttribute("aria-pressed", String(each === button));
    tell(button.dataset.choice);
  });
  return node;
}
