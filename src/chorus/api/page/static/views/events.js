// What happened: joins, losses, recoveries, loads and swaps, the latest first.
import { clock, day } from "../app/format.js";
import { html } from "../app/html.js";

/** Only who may do everything is told. */
export function Events({ frame }) {
  const { events } = frame;
  if (!events) return null;
  const today = new Date().toDateString();
  return html`<section class="panel"><h2>Events</h2>
    ${events.length === 0 && html`<p class="muted">Nothing has happened so far.</p>`}
    <ol class="events" tabindex="0" aria-label="Events">${events.map((event, place) => html`<li key=${`${event.time}${place}`} class=${event.level}>
      <time>${new Date(event.time * 1000).toDateString() === today ? clock(event.time) : day(event.time * 1000)}</time><span>${event.level !== "info" && html`<strong>${event.level}</strong> `}${event.text}</span>
    </li>`)}</ol>
  </section>`;
}
