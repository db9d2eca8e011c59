// Forms that are sent to the admin API; its errors are shown beside the fields.

import { attempt } from "./dialog.js";
import { fill, h } from "./dom.js";

/** Show it at the field that the error names. Returns whether there is one. */
function showAt(form, error) {
  const param = error.param?.replace(/[[.].*$/, "");
  const place =
    form.querySelector(`[data-param="${CSS.escape(error.param ?? "")}"]`) ??
    form.querySelector(`[data-param="${CSS.escape(param ?? "")}"]`);
  if (!place) return false;
  fill(place.querySelector(".trouble"), error.message);
  const line = /\[(\d+)\]/.exec(error.param)?.[1];
  const at = (line && place.querySelectorAll("li")[line]) || place;
  const control = at.querySelector("input, select, button");
  control.setAttribute("aria-invalid", "true");
  control.focus();
  return true;
}

/** Removes the errors of the form and of the field that is edited. */
function mended({ target }, trouble) {
  fill(trouble);
  const place = target.closest("[data-param]");
  if (!place) return;
  fill(place.querySelector(".trouble"));
  for (const each of place.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
}

/** A form with these children: `send` is awaited, and `then` is called when it has come to something. */
export function settingsForm({ save, trouble, send, then }, ...children) {
  const form = h(
    "form",
    {
      oninput: (event) => mended(event, trouble),
      onsubmit: async (event) => {
        event.preventDefault();
        for (const each of form.querySelectorAll("[data-param] .trouble")) fill(each);
        for (const each of form.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
        const error = await attempt(save, trouble, send);
        if (error?.param && showAt(form, error)) fill(trouble);
        if (!error) then();
      },
    },
    children,
  );
  return form;
}
