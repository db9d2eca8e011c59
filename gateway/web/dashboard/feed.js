// The live numbers: a sample every two seconds while the page is visible, and its listeners.

import { get } from "./api.js";
import { poll } from "./poll.js";

const EVERY_MS = 2000;
const KEPT = 75;
const CLOSEST_S = 0.5;

export class Feed {
  constructor(signal, isOn) {
    this.samples = [];
    this.error = null;
    this.listeners = new Set();
    if (isOn) poll(() => this.look(signal), EVERY_MS, signal);
  }

  async look(signal) {
    try {
      this.take(await get("live", null, signal));
      this.error = null;
    } catch (error) {
      if (signal.aborted) return;
      this.error = error;
    }
    for (const tell of this.listeners) tell(this);
  }

  /** Samples of one gateway, in order. Workers answer by turns, each from a sample of its own that may be older. */
  take(sample) {
    const last = this.samples.at(-1);
    if (last && last.instance !== sample.instance) {
      if (this.other === sample.instance)
        this.samples = []; // twice in a row: the first one is gone
      else {
        this.other = sample.instance;
        return;
      }
    }
    this.other = null;
    if (this.samples.length && sample.time - this.samples.at(-1).time < CLOSEST_S) return;
    if (this.samples.length && sample.requests < this.samples.at(-1).requests) this.samples = []; // it has restarted
    this.samples.push(sample);
    if (this.samples.length > KEPT) this.samples.shift();
  }

  get last() {
    return this.samples.at(-1) ?? null;
  }

  /** Call `tell` with each sample until `signal` aborts; with the last one at once. */
  listen(tell, signal) {
    this.listeners.add(tell);
    signal.addEventListener("abort", () => this.listeners.delete(tell));
    if (this.last || this.error) tell(this);
  }
}
