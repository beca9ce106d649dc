// Drawn with one pen: 20 by 20, lines of 1.6.
import { html } from "./html.js";

const PATHS = {
  cluster: "M4 5h5v5H4zM11 10h5v5h-5zM9 7.5h4.5V10",
  models: "M10 3l6.5 3.2L10 9.4 3.5 6.2zM3.5 10l6.5 3.2 6.5-3.2M3.5 13.6l6.5 3.2 6.5-3.2",
  requests: "M3.5 6h10M3.5 10h13M3.5 14h7",
  chat: "M4 4.5h12a1 1 0 0 1 1 1v7a1 1 0 0 1-1 1H9.5L6 16.8v-3.3H4a1 1 0 0 1-1-1v-7a1 1 0 0 1 1-1z",
  connect: "M8 12l4-4M9 5.5l1.6-1.6a3.4 3.4 0 0 1 4.8 4.8L13.8 10.3M11 14.5l-1.6 1.6a3.4 3.4 0 0 1-4.8-4.8L6.2 9.7",
  sun: "M10 6.7a3.3 3.3 0 1 0 0 6.6a3.3 3.3 0 1 0 0-6.6M10 2.5v1.5M10 16v1.5M2.5 10H4M16 10h1.5M4.7 4.7l1 1M14.3 14.3l1 1M4.7 15.3l1-1M14.3 5.7l1-1",
  moon: "M16.2 11.8A6.8 6.8 0 0 1 8.2 3.8a6.5 6.5 0 1 0 8 8z",
  key: "M12.5 3.5a4 4 0 1 0 0 8a4 4 0 1 0 0-8M9.6 10.4L3.5 16.5M5.5 14.5l2 2",
  copy: "M7 7h9v9H7zM4 13V4h9",
  check: "M4 10.5l4 4 8-9",
  stop: "M6 6h8v8H6z",
  send: "M10 16V4.5M5 9l5-5 5 5",
  edit: "M4 16l.8-3.2L13.6 4l2.4 2.4-8.8 8.8z",
  again: "M15.5 6.5A6.5 6.5 0 1 0 16.5 10M16 3v4h-4",
  trash: "M4 6h12M8 6V4h4v2M5.5 6l.7 10h7.6l.7-10",
  plus: "M10 4v12M4 10h12",
  left: "M12.5 4.5L7 10l5.5 5.5",
  right: "M7.5 4.5L13 10l-5.5 5.5",
  close: "M5 5l10 10M15 5L5 15",
  down: "M10 4v9M5.5 9.5L10 14l4.5-4.5M4 16.5h12",
  sliders: "M4 6h7M15 6h1M4 14h1M9 14h7M13 4v4M7 12v4",
  list: "M3.5 5h13M3.5 10h13M3.5 15h13",
  tool: "M12.2 3.3a4 4 0 0 0-4.7 5.3L3.3 12.8a1.5 1.5 0 0 0 0 2.1l1.8 1.8a1.5 1.5 0 0 0 2.1 0l4.2-4.2a4 4 0 0 0 5.3-4.7l-2.6 2.6-2.5-.5-.5-2.5z",
};

export function Icon({ name, label }) {
  const naming = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
  return html`<svg class="icon" viewBox="0 0 20 20" fill="none" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" stroke-linejoin="round" ...${naming}><path d=${PATHS[name]} /></svg>`;
}
