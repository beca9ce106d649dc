// Requests to the server, with the key, and its errors in its own words.
import { address } from "./address.js";
import { key } from "./key.js";

export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `The server answered ${status}.`);
    this.status = status;
    this.code = error?.code ?? null;
  }
}

export async function get(path) {
  return (await ask(path, {})).json();
}

/** What changes something is always a JSON POST. */
export async function post(path, body, signal) {
  return (await send(path, body, signal)).json();
}

export function send(path, body, signal) {
  const headers = { "content-type": "application/json" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

async function ask(path, options) {
  const headers = { ...options.headers, ...(key.value ? { authorization: `Bearer ${key.value}` } : {}) };
  let answer;
  try {
    answer = await fetch(address(path), { ...options, headers: { accept: "application/json", ...headers }, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server cannot be reached.");
  }
  if (!answer.ok) {
    const told = await answer.json().catch(() => null);
    throw new Refused(answer.status, told?.error);
  }
  return answer;
}
