// The API key: for as long as this tab lives, and only ever sent as a header.
import { Value } from "./store.js";

const NAME = "chorus.key";

function kept() {
  try {
    return sessionStorage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}

export const key = new Value(kept());

key.subscribe((value) => {
  try {
    if (value) sessionStorage.setItem(NAME, value);
    else sessionStorage.removeItem(NAME);
  } catch {
    // Then it lives as long as the page.
  }
});
