// The page: which view is shown, and what every view draws from.
import { Chat } from "../chat/view.js";
import { Cluster } from "../views/cluster.js";
import { Connect } from "../views/connect.js";
import { Models } from "../views/models.js";
import { Requests } from "../views/requests.js";
import { remember } from "./history.js";
import { html, render, useEffect, useRef } from "./html.js";
import { Icon } from "./icons.js";
import { key } from "./key.js";
import { KeyPanel } from "./key_panel.js";
import { watch } from "./live.js";
import { losses } from "./losses.js";
import { useValue, Value } from "./store.js";
import { choose, theme } from "./theme.js";
import { spoken, State } from "./widgets.js";

const VIEWS = [
  { name: "cluster", title: "Cluster", view: Cluster },
  { name: "models", title: "Models", view: Models },
  { name: "requests", title: "Requests", view: Requests },
  { name: "chat", title: "Chat", view: Chat },
  { name: "connect", title: "Connect", view: Connect },
];

const nothing = () => ({ state: "connecting", why: "", frame: null, history: new Map() });

/** {state, frame, history}: what the stream last brought. */
const live = new Value(nothing());
let lost = new Set();
// What one key was shown is not for the next.
key.subscribe(() => {
  live.value = nothing();
  lost = new Set();
});

watch((news) => {
  const before = live.value;
  const fresh = news.frame && news.frame.at !== before.frame?.at;
  if (fresh) {
    const told = losses(lost, news.frame);
    lost = told.lost;
    if (told.words) spoken.value = told.words;
  }
  live.value = { ...before, ...news, history: fresh ? remember(before.history, news.frame) : before.history };
});

const routed = () => VIEWS.find((view) => view.name === location.hash.replace(/^#\/?/, "").split("/")[0]) ?? VIEWS[0];
const route = new Value(routed());
window.addEventListener("hashchange", () => (route.value = routed()));

const CONNECTION = { live: "Live", connecting: "Connecting", offline: "Offline", locked: "Key needed", refused: "Refused" };

function Page() {
  const now = useValue(live);
  const at = useValue(route);
  const shown = useValue(theme);
  const held = useValue(key);
  const main = useRef(null);
  const first = useRef(true);
  useEffect(() => {
    document.title = `${at.title} · Chorus`;
    if (first.current) first.current = false;
    else {
      window.scrollTo(0, 0);
      main.current?.focus({ preventScroll: true });
    }
  }, [at]);
  const locked = now.state === "locked";
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>To the content</a>
    <header class="top">
      <a class="brand" href="#cluster" aria-label="Chorus, to the cluster"><${Mark} /><span>Chorus</span></a>
      <nav aria-label="Views">
        ${VIEWS.map((view) => html`<a key=${view.name} href=${`#${view.name}`} aria-current=${view === at ? "page" : null}><${Icon} name=${view.name} /><span>${view.title}</span></a>`)}
      </nav>
      <div class="corner">
        <${State} state=${now.state}>${CONNECTION[now.state] ?? now.state}<//>
        ${held && html`<button type="button" class="quiet icon-only" aria-label="Forget the key" title="Forget the key" onClick=${() => (key.value = "")}><${Icon} name="key" /></button>`}
        <button type="button" class="quiet icon-only" aria-label=${shown === "dark" ? "Light colours" : "Dark colours"} title=${shown === "dark" ? "Light colours" : "Dark colours"} onClick=${() => choose(shown === "dark" ? "light" : "dark")}><${Icon} name=${shown === "dark" ? "sun" : "moon"} /></button>
      </div>
    </header>
    <main id="main" ref=${main} tabindex="-1" class=${`view-${at.name}`}>
      ${locked ? html`<${KeyPanel} wrong=${Boolean(held)} />` : html`<${at.view} now=${now} />`}
    </main>
    <${Spoken} />`;
}

function Spoken() {
  return html`<div class="offscreen" role="status" aria-live="polite">${useValue(spoken)}</div>`;
}

function Mark() {
  return html`<svg class="mark" viewBox="0 0 26 22" aria-hidden="true"><rect x="1" y="8" width="4" height="6" rx="2" /><rect x="7.5" y="3" width="4" height="16" rx="2" /><rect x="14" y="6" width="4" height="10" rx="2" /><rect x="20.5" y="1" width="4" height="20" rx="2" /></svg>`;
}

const place = document.getElementById("page");
place.replaceChildren();
render(html`<${Page} />`, place);
