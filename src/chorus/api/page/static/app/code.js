// Code with colours: Prism says what each part is, and the page draws it.
import Prism from "../vendor/prism.js";
import { html, useMemo } from "./html.js";
import { CopyButton } from "./widgets.js";

const LONGEST = 40_000;
const SAME = { sh: "bash", shell: "bash", zsh: "bash", console: "bash", js: "javascript", ts: "typescript", py: "python", yml: "yaml", rs: "rust", "c++": "c", cpp: "c", html: "markup", xml: "markup", svg: "markup", golang: "go" };

export function Code({ text, language = "", label }) {
  const name = language.trim().split(/[\s{,]/)[0].toLowerCase();
  return html`<figure class="code">
    <figcaption><span>${label ?? (name || "text")}</span><${CopyButton} text=${() => text} /></figcaption>
    <pre tabindex="0"><code>${useMemo(() => coloured(text, name), [text, name])}</code></pre>
  </figure>`;
}

export function coloured(text, name) {
  const known = SAME[name] ?? name;
  const grammar = Object.hasOwn(Prism.languages, known) ? Prism.languages[known] : null;
  if (typeof grammar !== "object" || !grammar || text.length > LONGEST) return text;
  try {
    return Prism.tokenize(text, grammar).map(drawn);
  } catch {
    return text;
  }
}

function drawn(token) {
  if (typeof token === "string") return token;
  const inside = Array.isArray(token.content) ? token.content.map(drawn) : drawn(token.content);
  return html`<span class=${`t-${token.type}`}>${inside}</span>`;
}
