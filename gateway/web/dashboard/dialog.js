// Dialogs: the browser's own, so that Esc, focus and the page behind behave. One with an address of its own is no window over
// the view: it is shown in the place of the view.

import { goBack, readAddress } from "./address.js";
import { WIDE, fill, h } from "./dom.js";
import { tryKey } from "./tried_key.js";

/** The result of a dialog that is closed because the page behind it ends: nothing is to be done. */
export const LEFT = "left";

const isOnTop = (page) => !document.querySelector("dialog:modal") && page === document.querySelector("main > dialog:last-of-type");

/** Show a dialog in the place of the view, which is as it was when it ends; Esc ends it. Gives what is to be done then. */
function showAsPage(dialog) {
  const current = () => document.querySelector("#nav a[aria-current]");
  const before = document.querySelector("main > dialog:not([open])"); // it is closing, as this one is shown instead
  const [view, scrolled] = [current(), before ? Number(before.dataset.scrolled) : scrollY];
  dialog.dataset.scrolled = scrolled;
  const ended = new AbortController();
  document.querySelector("main").append(dialog);
  dialog.show();
  scrollTo(0, 0);
  addEventListener("keydown", (event) => event.key === "Escape" && isOnTop(dialog) && dialog.close(), { signal: ended.signal });
  return (isLast) => {
    ended.abort();
    if (isLast && current() === view) scrollTo(0, scrolled);
  };
}

/** Open a dialog with this title. `make(close)` gives its content. It is gone from the page once closed. `isPage`: it is
 * shown in the place of the view. */
export function openDialog(title, make, { kind = "", isPage = false, onClose } = {}) {
  const heading = h("h2", { id: "dialog-title", tabindex: "-1" }, title);
  const dialog = h("dialog", { class: kind, "aria-labelledby": "dialog-title" });
  const close = () => dialog.close();
  fill(
    dialog,
    h(
      "header",
      null,
      heading,
      isPage
        ? h("button", { type: "button", class: "quiet", onclick: close }, "← Back")
        : h("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: close }, "✕"),
    ),
    make(close, dialog),
  );
  let after = null;
  dialog.addEventListener("close", () => {
    const isLast = !dialog.nextElementSibling;
    dialog.remove();
    after?.(isLast);
    onClose?.(dialog.returnValue === LEFT);
  });
  if (isPage) after = showAsPage(dialog);
  else {
    document.body.append(dialog);
    dialog.showModal();
  }
  (dialog.querySelector("[autofocus]") ?? heading).focus();
  return dialog;
}

/** Close what has an address of its own, as another address is shown: the call or refusal on top (`kind` "detail"), or the
 * pages that `openOne` has opened ("page"). */
export function closeShown(kind) {
  for (const dialog of document.querySelectorAll(`dialog.${kind}`)) dialog.close(LEFT);
}

/** A page about one thing of a list, whose address it has; closing leads back to where the user came from, else to the
 * list. Gives the places for its content, for what is known about the thing, for its buttons and for more, how to close it, and
 * a signal for when it or the page behind has ended. On a small screen `more` comes before what is known and the buttons. */
export function openOne(title, list, signal) {
  const ended = new AbortController();
  const at = readAddress();
  const [place, about, more] = [h("div"), h("div"), h("div")];
  const buttons = h("footer");
  const rest = matchMedia(WIDE).matches ? [about, buttons, more] : [more, about, buttons];
  const dialog = openDialog(title, () => h("div", null, place, rest), {
    kind: "page",
    isPage: true,
    onClose: (isLeft) => {
      ended.abort();
      const now = readAddress();
      if (!isLeft && now.view === at.view && now.name === at.name) goBack(list); // else another address was chosen meanwhile
    },
  });
  const close = () => dialog.close();
  signal.addEventListener("abort", () => dialog.close(LEFT), { signal: ended.signal });
  return { place, about, more, buttons, close, both: AbortSignal.any([signal, ended.signal]) };
}

/** A question before something that cannot be undone. `act` is awaited; what it raises is shown. */
export function confirmFirst(title, what, verb, act) {
  openDialog(
    title,
    (close) => {
      const trouble = h("p", { class: "trouble", role: "alert" });
      const yes = h("button", { type: "button", class: "danger" }, verb);
      yes.addEventListener("click", () =>
        attempt(yes, trouble, async () => {
          await act();
          close();
        }),
      );
      return h(
        "div",
        null,
        h("p", null, what),
        trouble,
        h("footer", null, h("button", { type: "button", autofocus: true, onclick: close }, "Cancel"), yes),
      );
    },
    { kind: "small" },
  );
}

/** Do something once, with its button at rest meanwhile; returns what was raised, which is shown. */
export async function attempt(button, trouble, act) {
  button.disabled = true;
  fill(trouble, "");
  try {
    await act();
    return null;
  } catch (error) {
    if (error.status === undefined) console.error(error);
    fill(trouble, error.message);
    return error;
  } finally {
    button.disabled = false;
  }
}

/** A new secret, the only time that it is shown; `more` is shown below it. */
export function showSecret(title, id, secret, ...more) {
  openDialog(
    title,
    (close) => {
      const code = h("code", { class: "secret", id: "secret" }, secret);
      const copied = h("span", { role: "status" });
      const tryIt = () => {
        close();
        tryKey(id, secret);
      };
      const copy = h("button", { type: "button", class: "primary", autofocus: true }, "Copy the secret");
      copy.addEventListener("click", async () => {
        getSelection().selectAllChildren(code);
        try {
          await navigator.clipboard.writeText(secret);
          fill(copied, "Copied.");
        } catch {
          fill(copied, "Selected: press Ctrl+C or ⌘C."); // an address without TLS has no clipboard
        }
      });
      return h(
        "div",
        null,
        h(
          "p",
          null,
          "This is the secret of ",
          h("b", null, id),
          ". It is shown once; nobody can read it again, not even the gateway.",
        ),
        code,
        more,
        h("footer", null, copied, h("button", { type: "button", id: "try-key", onclick: tryIt }, "Try it in the playground"), copy, h("button", { type: "button", onclick: close }, "Done")),
      );
    },
    { kind: more.length ? "wide" : "small" },
  );
}
