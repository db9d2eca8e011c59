// Deploys and reloads of the gateway, as marks of charts.

import { get } from "./api.js";
import { clock, many } from "./format.js";

const LENGTHS = { day: 10, hour: 13, minute: 16 };

/** The events in words, by the day, hour or minute of a chart. */
function eventsByStep(events, unit) {
  const said = ({ time, kind, version }) => `${kind === "deploy" ? `deploy of ${version}` : "reload"} at ${clock(time).slice(0, 5)}`;
  const steps = Map.groupBy(events, ({ time }) => time.slice(0, LENGTHS[unit]));
  return new Map([...steps].map(([step, some]) => [step, some.map(said)]));
}

/** Those that the user may see, by the day, hour or minute of a chart. */
export const readEvents = async (can, unit, signal) => eventsByStep(can("GET /admin/api/events") ? (await get("events", null, signal)).data : [], unit);

/** How many of them are among the rows, as a sentence. */
export function eventsInWords(events, rows, unit) {
  const number = rows.reduce((all, row) => all + (events.get(row[unit])?.length ?? 0), 0);
  return number ? ` ${many(number, "mark")} of deploys and reloads.` : "";
}
