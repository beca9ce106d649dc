// Starts the shared worker and hands its port to the page, which by its policy may start none itself.
const worker = new SharedWorker(new URL("worker.js", import.meta.url), { type: "module", name: "chorus-live" });
worker.onerror = () => parent.postMessage({ chorus: "no-worker" }, location.origin);
parent.postMessage({ chorus: "live" }, location.origin, [worker.port]);
