// Starts the shared worker and hands its port to the page, which by its policy may start none itself.
const none = () => parent.postMessage({ chorus: "no-worker" }, location.origin);
try {
  const worker = new SharedWorker(new URL("worker.js", import.meta.url), { type: "module", name: "chorus-live" });
  worker.onerror = none;
  parent.postMessage({ chorus: "live" }, location.origin, [worker.port]);
} catch {
  none();
}
