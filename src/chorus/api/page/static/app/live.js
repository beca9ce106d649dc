// The page's end of the one stream per browser.
import { Connection } from "../live/connection.js";
import { address } from "./address.js";
import { key } from "./key.js";

const PING_MS = 20_000;
const FRAME_MS = 20_000;
const PORT_MS = 3000;

/** Calls `tell` with {state} and {frame} while this page is visible. */
export function watch(tell) {
  const line = "SharedWorker" in window ? new SharedLine(tell) : new OwnLine(tell);
  const say = () => line.say({ key: key.value, visible: document.visibilityState === "visible" });
  document.addEventListener("visibilitychange", say);
  window.addEventListener("pagehide", () => line.say({ bye: true }));
  window.addEventListener("pageshow", say);
  key.subscribe(say);
  setInterval(say, PING_MS);
  say();
}

class SharedLine {
  #tell;
  #port = null;
  #own = null;
  #unsaid = null;

  constructor(tell) {
    this.#tell = tell;
    const frame = document.createElement("iframe");
    frame.title = "The page's line to the server";
    frame.hidden = true;
    frame.tabIndex = -1;
    window.addEventListener("message", (message) => {
      if (message.source !== frame.contentWindow || message.origin !== location.origin) return;
      if (message.data?.chorus === "live") this.#take(message.ports[0]);
      if (message.data?.chorus === "no-worker") this.#alone();
    });
    // Where the frame is blocked, or its browser starts no worker, nothing is ever said.
    const wait = (pause) => setTimeout(() => this.#port || this.#alone(), pause);
    frame.addEventListener("load", () => wait(PORT_MS));
    wait(FRAME_MS);
    frame.src = address("static/live/frame.html");
    document.body.append(frame);
  }

  #take(port) {
    if (this.#own) return;
    this.#port = port;
    port.onmessage = ({ data }) => this.#tell(data);
    if (this.#unsaid) port.postMessage(this.#unsaid);
  }

  #alone() {
    this.#port = null;
    this.#own ??= new OwnLine(this.#tell);
    if (this.#unsaid) this.#own.say(this.#unsaid);
  }

  say(words) {
    this.#unsaid = words;
    (this.#own ? { postMessage: (said) => this.#own.say(said) } : this.#port)?.postMessage(words);
  }
}

/** Where there is no shared worker, as in some browsers of phones, each page has its own stream. */
class OwnLine {
  #tell;
  #key = null;
  #connection = null;

  constructor(tell) {
    this.#tell = tell;
  }

  say({ key: shown, visible, bye }) {
    const wanted = !bye && visible;
    if (this.#connection && (!wanted || shown !== this.#key)) {
      this.#connection.close();
      this.#connection = null;
    }
    if (wanted && !this.#connection) {
      this.#key = shown;
      this.#connection = new Connection(shown, this.#tell);
    }
  }
}
