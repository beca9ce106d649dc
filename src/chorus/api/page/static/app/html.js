// One place for what every part of the page is written with.
import htm from "../vendor/htm.js";
import { h, render } from "../vendor/preact.js";

export { render };
export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
export const html = htm.bind(h);
