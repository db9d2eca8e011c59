// The places of content that is not there (yet): loading, empty, failed, the store unavailable.

import { fill, h } from "./dom.js";

export const bones = (kind = "panel", number = 1) =>
  Array.from({ length: number }, () => h("i", { class: `bone ${kind}`, "aria-hidden": "true" }));

export const loading = () => [h("p", { class: "sr", role: "status" }, "Loading"), bones()];

export const empty = (title, ...more) =>
  h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), h("p", null, ...more));

/** Why there is nothing to see, and a way to try again. */
export function failed(error, again) {
  const isGone = error.status === 404;
  const title = error.isStoreAway ? "The store does not answer" : isGone ? "Not found" : "This could not be loaded";
  const more = error.isStoreAway
    ? "Usage, quotas and keys are kept there. The live numbers go on without it, and this page will try again."
    : error.message;
  return h(
    "div",
    { class: "empty bad", role: "alert" },
    h("p", { class: "empty-title" }, title),
    h("p", null, more),
    again && !isGone && h("button", { type: "button", onclick: again }, "Try again"),
  );
}

/**
 * Show the result of `work` in a place. The old content stays until then, and is shown as old if it fails. Returns whether
 * it came to something.
 */
export async function into(place, signal, work, again) {
  if (!place.hasChildNodes()) fill(place, loading());
  place.setAttribute("aria-busy", "true");
  try {
    await work();
    place.classList.remove("old");
    return true;
  } catch (error) {
    if (signal.aborted) return false;
    if (error.status === undefined) console.error(error);
    if (place.querySelector(".bone, .empty.bad") || !place.hasChildNodes()) fill(place, failed(error, again));
    else {
      place.dataset.trouble = `Not up to date: ${error.message}`;
      place.classList.add("old");
    }
    return false;
  } finally {
    place.removeAttribute("aria-busy");
  }
}
