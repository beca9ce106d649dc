// One stream of pictures of the server, opened again whenever it ends.
import { address } from "../app/address.js";
import { eventsOf } from "../app/events.js";

const SILENT_MS = 6000;
const PAUSES_MS = [300, 700, 1500, 3000, 5000];

/** `tell` hears {state} and {frame}: connecting, live, offline, locked (a key is wanted), refused. */
export class Connection {
  #key;
  #tell;
  #stop = new AbortController();
  #failures = 0;
  last = { state: "connecting" };

  constructor(key, tell) {
    this.#key = key;
    this.#tell = tell;
    this.#run();
  }

  close() {
    this.#stop.abort();
  }

  #say(news) {
    if (this.#stop.signal.aborted) return;
    this.last = { ...this.last, ...news };
    this.#tell(news);
  }

  async #run() {
    while (!this.#stop.signal.aborted) {
      const began = Date.now();
      const brought = await this.#once();
      if (brought === "locked" || this.#stop.signal.aborted) return;
      // A stream that lasted has only come to its usual end.
      if (brought === "live" && Date.now() - began > 5000) this.#failures = 0;
      const pause = PAUSES_MS[Math.min(this.#failures, PAUSES_MS.length - 1)];
      this.#failures += 1;
      if (brought === "nothing" || (brought === "live" && this.#failures > 2)) this.#say({ state: "offline" });
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }

  /** What this attempt brought, whatever the one before did: "live", "locked", "refused" or "nothing". */
  async #once() {
    let brought = "nothing";
    const attempt = new AbortController();
    const stop = () => attempt.abort();
    this.#stop.signal.addEventListener("abort", stop);
    let watchdog = setTimeout(stop, SILENT_MS);
    try {
      const headers = this.#key ? { authorization: `Bearer ${this.#key}` } : {};
      const answer = await fetch(address("live"), { headers, signal: attempt.signal, cache: "no-store" });
      if (answer.status === 401) {
        this.#say({ state: "locked" });
        return "locked";
      }
      if (!answer.ok) {
        const told = await answer.json().catch(() => null);
        this.#say({ state: "refused", why: told?.error?.message ?? `the server answered ${answer.status}` });
        return "refused";
      }
      for await (const { data } of eventsOf(answer.body)) {
        clearTimeout(watchdog);
        watchdog = setTimeout(stop, SILENT_MS);
        brought = "live";
        this.#say(data ? { state: "live", frame: JSON.parse(data) } : { state: "live" });
      }
    } catch {
      // Whatever broke it, it is opened again.
    } finally {
      clearTimeout(watchdog);
      this.#stop.signal.removeEventListener("abort", stop);
    }
    return brought;
  }
}
