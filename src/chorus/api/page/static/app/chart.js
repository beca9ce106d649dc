// A small line of the last minutes, drawn by uPlot on a canvas.
import uPlot from "../vendor/uplot.js";
import { html, useEffect, useRef } from "./html.js";
import { useValue } from "./store.js";
import { colour, theme } from "./theme.js";

/** What came in few seconds is not drawn as if it had taken minutes. */
const NARROWEST_SECONDS = 60;

/** `points` are [[times], [values]]; the figure beside it says the same in words. */
export function Spark({ points, ink = "--accent", height = 44, onPoint }) {
  const box = useRef(null);
  const plot = useRef(null);
  const told = useRef(onPoint);
  told.current = onPoint;
  const shown = useValue(theme);
  useEffect(() => {
    const line = colour(ink);
    const place = box.current;
    const width = () => Math.max(40, Math.floor(place.clientWidth));
    const made = new uPlot(
      {
        width: width(),
        height,
        padding: [4, 2, 2, 2],
        legend: { show: false },
        select: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
        scales: { x: { time: false, range: (_, first, last) => [Math.min(first, last - NARROWEST_SECONDS), last] }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(high ?? 0, 1e-9) * 1.08] } },
        axes: [{ show: false }, { show: false }],
        series: [{}, { stroke: line, width: 1.6, fill: `color-mix(in srgb, ${line} 13%, transparent)`, points: { show: false }, spanGaps: false }],
        hooks: { setCursor: [(each) => told.current?.(each.cursor.idx ?? null)] },
      },
      points,
      place,
    );
    plot.current = made;
    const resized = new ResizeObserver(() => made.setSize({ width: width(), height }));
    resized.observe(place);
    return () => {
      resized.disconnect();
      made.destroy();
    };
  }, [shown, ink, height]);
  useEffect(() => plot.current?.setData(points), [points]);
  return html`<div class="spark" ref=${box} aria-hidden="true"></div>`;
}
