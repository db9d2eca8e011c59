// The token in other tabs of this page: a link that is opened in a new tab needs no second sign-in, and signing out ends all of them.

import { token } from "./api.js";

const WAIT_MS = 150;
const channel = new BroadcastChannel("gateway-token");
let focused = Date.now(); // when this tab was used last
let onEnd = () => {};

addEventListener("focus", () => {
  focused = Date.now();
});
channel.addEventListener("message", ({ data }) => {
  if (data.asks && token.get()) channel.postMessage({ lent: token.get(), focused });
  if (data.ended && data.ended === token.get()) onEnd();
});

/** Set the function to call when another tab has signed out of the same token. */
export function whenEnded(tell) {
  onEnd = tell;
}

/** The token of the tab that was used last is this tab's, too. Returns whether there was one. */
export async function borrowToken() {
  const found = [];
  const take = ({ data }) => data.lent && found.push(data);
  channel.addEventListener("message", take);
  channel.postMessage({ asks: true });
  await new Promise((done) => setTimeout(done, WAIT_MS));
  channel.removeEventListener("message", take);
  const [newest] = found.sort((one, other) => other.focused - one.focused);
  if (newest) token.set(newest.lent);
  return Boolean(newest);
}

/** The user signs out: so do the other tabs with this token. */
export const endElsewhere = () => token.get() && channel.postMessage({ ended: token.get() });
