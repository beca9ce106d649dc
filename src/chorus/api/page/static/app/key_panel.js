import { html, useState } from "./html.js";
import { key } from "./key.js";
import { Notice } from "./widgets.js";

// The panel goes while a key is tried, and comes back: what was begun meanwhile is kept.
let begun = "";

/** Where the server asks for a key. */
export function KeyPanel({ wrong }) {
  const [odd, setOdd] = useState(false);
  // Read when it is sent: what was typed a moment ago may not be drawn yet.
  const submit = (event) => {
    event.preventDefault();
    const typed = event.currentTarget.elements.key.value.trim();
    // Anything else cannot stand in a header, and no request would leave the page.
    const sendable = /^[\x21-\x7e]+$/.test(typed);
    setOdd(!sendable);
    if (!sendable) return;
    begun = "";
    if (typed === key.value) key.value = ""; // tried once more: it may have been made meanwhile
    key.value = typed;
  };
  return html`<section class="panel narrow">
    <h1>This server asks for a key</h1>
    <p class="muted">It stays in this tab, and goes with it. Whoever runs the server makes one with <code>chorus keys new NAME</code>.</p>
    ${odd && html`<${Notice}>A key is of plain letters, digits and signs, with no space among them.<//>`}
    ${wrong && !odd && html`<${Notice}>The server does not know that key.<//>`}
    <form onSubmit=${submit} class="stack">
      <label for="key">API key</label>
      <input id="key" type="password" autocomplete="off" spellcheck="false" required defaultValue=${begun} onInput=${(typed) => { begun = typed.currentTarget.value; }} />
      <div><button type="submit" class="main">Open</button></div>
    </form>
  </section>`;
}
