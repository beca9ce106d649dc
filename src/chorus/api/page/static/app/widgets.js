// Small parts that several views share.
import { copy } from "./clipboard.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Icon } from "./icons.js";
import { Value } from "./store.js";

/** What is said to those who cannot see that something has changed. */
export const spoken = new Value("");

const TONES = {
  ready: "good", live: "good", running: "good", finished: "calm",
  loading: "busy", starting: "busy", warming: "busy", waiting: "busy", draining: "busy", queued: "busy", connecting: "busy",
  recovering: "bad", lost: "bad", unreachable: "bad", unanswered: "bad", failed: "bad", broken: "bad", offline: "bad", refused: "bad",
};

export const tone = (state) => TONES[state] ?? "calm";

/** A state is a colour and a word, never a colour alone. */
export function State({ state, children }) {
  return html`<span class=${`state ${tone(state)}`}><span class="dot" aria-hidden="true"></span>${children ?? state}</span>`;
}

export function CopyButton({ text, label = "Copy" }) {
  const [done, setDone] = useState("");
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  const act = async () => {
    const copied = await copy(text());
    setDone(copied ? "Copied" : "Not copied");
    spoken.value = copied ? "Copied" : "It could not be copied";
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setDone(""), 1600);
  };
  return html`<button type="button" class="quiet small" onClick=${act}><${Icon} name=${done === "Copied" ? "check" : "copy"} />${done || label}</button>`;
}

export function Meter({ value, most, label, tone: kind = "" }) {
  const share = most > 0 ? Math.max(0, Math.min(1, value / most)) : 0;
  const drawn = useRef(null);
  useEffect(() => {
    drawn.current.style.inlineSize = `${share * 100}%`;
  }, [share]);
  return html`<div class=${`meter ${kind}`} role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(share * 100)}><div ref=${drawn}></div></div>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p><p>${children}</p></div>`;
}

export function Notice({ kind = "bad", children, onClose }) {
  return html`<div class=${`notice ${kind}`} role=${kind === "bad" ? "alert" : "status"}><div>${children}</div>${
    onClose && html`<button type="button" class="quiet icon-only" aria-label="Close" onClick=${onClose}><${Icon} name="close" /></button>`
  }</div>`;
}

/** Asks before what cannot be undone. The browser's own dialog keeps the focus inside and takes Escape. */
export function Confirm({ question, action, onYes, onNo }) {
  const dialog = useRef(null);
  useEffect(() => {
    dialog.current.showModal();
  }, []);
  return html`<dialog ref=${dialog} class="confirm" onClose=${onNo} aria-label=${question}>
    <p>${question}</p>
    <div class="row end">
      <button type="button" onClick=${() => dialog.current.close()}>Keep it</button>
      <button type="button" class="danger" onClick=${() => { onYes(); dialog.current.close(); }}>${action}</button>
    </div>
  </dialog>`;
}
