// Server-sent events out of a stream of bytes: what EventSource reads, for requests that carry a key.

/** Yields {event, data} for each event and {comment} for each comment; lines may come in any pieces. */
export async function* eventsOf(stream) {
  const reader = stream.getReader();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(value);
    }
  } finally {
    // Whoever leaves early wants no more of it.
    reader.cancel().catch(() => {});
  }
}

const LONGEST = 4 * 1024 * 1024;

export class EventParser {
  #decoder = new TextDecoder();
  #rest = "";
  #event = "";
  #data = [];
  #size = 0;

  *push(bytes) {
    this.#rest += this.#decoder.decode(bytes, { stream: true });
    let end;
    // A carriage return at the very end may be half of a line break.
    while ((end = this.#rest.search(/\r\n|\n|\r(?=.)/s)) >= 0) {
      const line = this.#rest.slice(0, end);
      this.#rest = this.#rest.slice(end + (this.#rest.startsWith("\r\n", end) ? 2 : 1));
      const found = this.#take(line);
      if (found) yield found;
    }
    if (this.#rest.length + this.#size > LONGEST) throw new Error("an event of this stream is too long");
  }

  #take(line) {
    if (line === "") {
      const found = this.#data.length ? { event: this.#event || "message", data: this.#data.join("\n") } : null;
      this.#event = "";
      this.#data = [];
      this.#size = 0;
      return found;
    }
    if (line.startsWith(":")) return { comment: line.slice(1).trim() };
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (field === "event") this.#event = value;
    if (field === "data") {
      this.#data.push(value);
      this.#size += value.length;
    }
    return null;
  }
}
