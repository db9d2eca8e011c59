// A key that was made here and is tried in the playground: kept in the memory of this page alone, until it is loaded again
// or the user signs out.

let tried = null; // {id, secret}

/** Use this key in the playground, and go there. */
export function tryKey(id, secret) {
  tried = { id, secret };
  location.hash = "#playground";
}

export const triedKey = () => tried;

export function forgetTriedKey() {
  tried = null;
}
