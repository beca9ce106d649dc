// Conversations, kept in this browser and nowhere else.
import { newId } from "../app/ids.js";
import { Value } from "../app/store.js";

const DATABASE = "chorus";
const STORE = "conversations";
const MOST = 500;

/** Under which name this browser keeps the model that was talked to last. */
export const CHOSEN_MODEL = "chorus.chat.model";

/** All of them, the latest first. Where the browser keeps nothing they live as long as the page. */
export const conversations = new Value([]);

let database = null;
const others = "BroadcastChannel" in window ? new BroadcastChannel("chorus.conversations") : null;
others?.addEventListener("message", () => read());

export function blank(model) {
  return { id: newId(), title: "", model, changed: Date.now(), messages: [] };
}

export async function open() {
  try {
    database = await new Promise((resolve, reject) => {
      const asked = indexedDB.open(DATABASE, 1);
      asked.onupgradeneeded = () => asked.result.createObjectStore(STORE, { keyPath: "id" });
      asked.onsuccess = () => resolve(asked.result);
      asked.onerror = () => reject(asked.error);
    });
  } catch {
    database = null;
  }
  await read();
}

export function keep(conversation) {
  // Later than what it was made of, whatever the clock says: the latest is taken by every page that shows it.
  const kept = { ...conversation, changed: Math.max(Date.now(), conversation.changed + 1) };
  conversations.value = sorted([kept, ...conversations.value.filter((each) => each.id !== kept.id)]);
  for (const old of conversations.value.slice(MOST)) change((store) => store.delete(old.id));
  conversations.value = conversations.value.slice(0, MOST);
  change((store) => store.put(kept));
  return kept;
}

export function forget(id) {
  conversations.value = conversations.value.filter((each) => each.id !== id);
  change((store) => store.delete(id));
}

function change(act) {
  if (!database) return;
  const transaction = database.transaction(STORE, "readwrite");
  act(transaction.objectStore(STORE));
  transaction.oncomplete = () => others?.postMessage("changed");
}

async function read() {
  if (!database) return;
  const all = await new Promise((resolve) => {
    const asked = database.transaction(STORE).objectStore(STORE).getAll();
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => resolve([]);
  });
  conversations.value = sorted(all);
}

const sorted = (list) => [...list].sort((a, b) => b.changed - a.changed);

export function titleOf(conversation) {
  const first = conversation.messages.find((message) => message.role === "user");
  return conversation.title || first?.content.trim().replace(/\s+/g, " ").slice(0, 60) || "New conversation";
}
