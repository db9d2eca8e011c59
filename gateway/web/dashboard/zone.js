// The switch between UTC and local time. Days of sums and quotas are UTC's in any case.

import { fill } from "./dom.js";
import { isLocal, switchZone, zoneOf } from "./format.js";

const button = document.getElementById("zone");

function show() {
  const [now, other] = isLocal() ? ["local time", "UTC"] : ["UTC", "local time"];
  fill(button, isLocal() ? zoneOf() : "UTC");
  button.setAttribute("aria-label", `${isLocal() ? zoneOf() : "UTC"}: times are in ${now}; switch to ${other}`);
  button.title = `Times are in ${now}. Days of sums and quotas are UTC’s.`;
}

/** Show the switch; `tell` is called when the zone has changed. */
export function onZone(tell) {
  show();
  button.addEventListener("click", () => {
    switchZone();
    show();
    tell();
  });
}
