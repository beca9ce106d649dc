// Light or dark: as the system prefers, until somebody chooses.
import { keepAs } from "./kept.js";
import { Value } from "./store.js";

const NAME = "chorus.theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

const current = () => document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");

export const theme = new Value(current());
dark.addEventListener("change", () => (theme.value = current()));

export function choose(next) {
  document.documentElement.dataset.theme = next;
  keepAs(NAME, next);
  theme.value = next;
}

/** A colour of the style sheet as it is now, for what is drawn on a canvas. */
export function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
