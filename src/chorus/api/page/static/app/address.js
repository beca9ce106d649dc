// Where the server is, seen from these files: also behind a proxy that serves it under a path of its own.
export const base = new URL("../../", import.meta.url);
export const address = (path) => new URL(path, base).href;
