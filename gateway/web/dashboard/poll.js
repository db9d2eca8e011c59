// Periodic work, only while the page is visible.

const AGAIN_MS = 4000;

/**
 * Run `work` now and, after each time, `every_ms` later; sooner where it returns false, because it failed. Never
 * while the page is hidden, and until `signal` aborts.
 */
export function poll(work, every_ms, signal) {
  let timer = 0;
  let isRunning = false;

  async function turn() {
    clearTimeout(timer);
    if (isRunning || signal.aborted || document.hidden) return;
    isRunning = true;
    let isDone = false;
    try {
      isDone = (await work()) !== false;
    } catch (error) {
      if (!signal.aborted) console.error(error);
    } finally {
      isRunning = false;
    }
    if (!signal.aborted && !document.hidden) timer = setTimeout(turn, isDone ? every_ms : Math.min(every_ms, AGAIN_MS));
  }

  document.addEventListener("visibilitychange", turn, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  turn();
  return turn;
}
