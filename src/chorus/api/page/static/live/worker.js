// Shared by all pages of a browser: one stream for them together, none while all of them are hidden.
import { Connection } from "./connection.js";

const FORGET_MS = 90_000;
const pages = new Map();
const streams = new Map();

self.onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data }) => {
    if (data.bye) pages.delete(port);
    else pages.set(port, { key: data.key, visible: data.visible, heard: Date.now() });
    settle(port);
  };
};

// A page that crashed says no more.
setInterval(() => {
  for (const [port, page] of pages) if (Date.now() - page.heard > FORGET_MS) pages.delete(port);
  settle();
}, 15_000);

function settle(newcomer) {
  const wanted = new Set([...pages.values()].filter((page) => page.visible).map((page) => page.key));
  for (const [key, stream] of streams) {
    if (!wanted.has(key)) {
      stream.close();
      streams.delete(key);
    }
  }
  for (const key of wanted) {
    if (!streams.has(key)) streams.set(key, new Connection(key, (news) => spread(key, news)));
  }
  const page = pages.get(newcomer);
  const stream = page?.visible && streams.get(page.key);
  if (stream) newcomer.postMessage(stream.last);
}

function spread(key, news) {
  for (const [port, page] of pages) if (page.visible && page.key === key) port.postMessage(news);
}
