// A value that whoever draws it can follow.
import { useLayoutEffect, useState } from "./html.js";

export class Value {
  #value;
  #listeners = new Set();

  constructor(value) {
    this.#value = value;
  }

  get value() {
    return this.#value;
  }

  set value(next) {
    if (Object.is(next, this.#value)) return;
    this.#value = next;
    for (const listener of [...this.#listeners]) listener(next);
  }

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

export function useValue(source) {
  const [, redraw] = useState(0);
  // Within the drawing: what changes between that and a later moment would be missed.
  useLayoutEffect(() => source.subscribe(() => redraw((times) => times + 1)), [source]);
  return source.value;
}
