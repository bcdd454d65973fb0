/** Charts, drawn by Observable Plot. */

import * as Plot from "@observablehq/plot";
import { labelText, make } from "./elements.js";
import { exactText } from "./numbers.js";

export interface Bar {
  readonly label: string;
  readonly value: number;
  /** The value before dropout, drawn as an outline. */
  readonly before: number | null;
}

/** A bar for each key: the weight that the query gives it. */
export function weightChart(caption: string, bars: readonly Bar[]): HTMLElement {
  const data = bars.map((bar, place) => ({ ...bar, place: String(place) }));
  const names = new Map(data.map((bar) => [bar.place, labelText(bar.label)]));
  const drawn = Plot.plot({
    width: Math.min(620, 90 + 64 * bars.length),
    height: 150,
    marginBottom: 26,
    marginLeft: 36,
    x: { type: "band", domain: data.map((bar) => bar.place), tickFormat: (place: string) => names.get(place)!, label: null },
    y: { grid: true, label: null, ticks: 4, zero: true },
    marks: [
      Plot.barY(data, { x: "place", y: "value", fill: "var(--accent)", insetLeft: 4, insetRight: 4 }),
      Plot.barY(data.filter((bar) => bar.before !== null), {
        x: "place", y: "before", fill: "none", stroke: "var(--soft)", strokeDasharray: "3,2", insetLeft: 4, insetRight: 4,
      }),
      Plot.ruleY([0], { stroke: "var(--soft)" }),
    ],
  });
  return figure(caption, data.map((bar) => `${labelText(bar.label)} ${exactText(bar.value)}`), drawn);
}

export interface Curve {
  readonly x: number;
  readonly y: number;
  readonly series: string;
}

/** Lines over a setting that is varied, with a mark at its present value. */
export function curveChart(caption: string, xLabel: string, curves: readonly Curve[], now: number): HTMLElement {
  const drawn = Plot.plot({
    width: 420,
    height: 190,
    marginLeft: 36,
    x: { type: "log", label: xLabel, tickFormat: "~g", ticks: 4 },
    y: { grid: true, label: null, zero: true, ticks: 4 },
    marks: [
      Plot.ruleX([now], { stroke: "var(--negative)", strokeWidth: 2 }),
      Plot.line(curves, { x: "x", y: "y", z: "series", stroke: "var(--accent)", strokeWidth: 1.5 }),
      Plot.text(curves, Plot.selectFirst({ x: "x", y: "y", z: "series", text: "series", textAnchor: "start", dy: -8, fill: "currentColor" })),
    ],
  });
  return figure(caption, [], drawn);
}

function figure(caption: string, values: readonly string[], drawn: Element): HTMLElement {
  // The chart is one picture with one label; Plot's labels of its parts may not stand on plain groups.
  for (const part of drawn.querySelectorAll("[aria-label]")) part.removeAttribute("aria-label");
  drawn.setAttribute("role", "img");
  drawn.setAttribute("aria-label", [caption, ...values].join("; "));
  return make("figure", { class: "chart" }, drawn, make("figcaption", {}, caption));
}
