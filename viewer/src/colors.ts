/** Colors of values: blue for positive ones, orange for negative ones, which the color-blind can tell apart. */

/** The number of steps from zero to the largest absolute value. */
export const LEVELS = 24;

export type Theme = "light" | "dark";

const DARK = "screen and (prefers-color-scheme: dark)"; // paper is always light

export function themeNow(): Theme {
  return matchMedia(DARK).matches ? "dark" : "light";
}

export function onThemeChange(repaint: () => void): void {
  matchMedia(DARK).addEventListener("change", repaint);
}

const POSITIVE = {
  light: ["#f4f8fc", "#deebf7", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08306b"],
  dark: ["#1c2430", "#1f3552", "#244a7a", "#2f64a6", "#4a86cc", "#79abe4", "#aacdf3", "#e2f0ff"],
};
const NEGATIVE = {
  light: ["#f4f8fc", "#fdeadb", "#fdd5b1", "#fdb27c", "#f58f48", "#dd6519", "#ad4505", "#6e2a04"],
  dark: ["#1c2430", "#40291a", "#66391a", "#94501c", "#c56d29", "#e6924f", "#f5bb8b", "#ffe7d2"],
};

type Color = readonly [number, number, number];

function parsed(hex: string): Color {
  return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16)) as unknown as Color;
}

/** The color of a level from −LEVELS to LEVELS. */
export function colorOf(level: number, theme: Theme): Color {
  const stops = (level < 0 ? NEGATIVE : POSITIVE)[theme].map(parsed);
  const place = (Math.abs(level) / LEVELS) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  return [0, 1, 2].map((channel) => {
    const [from, to] = [stops[low]![channel]!, stops[low + 1]![channel]!];
    return Math.round(from + (to - from) * (place - low));
  }) as unknown as Color;
}

/** Black or white, whichever has the larger contrast as WCAG defines it. */
export function inkOn(color: Color): string {
  const [red, green, blue] = color.map((channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }) as unknown as Color;
  const luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 ? "#fff" : "#000";
}

/** The level of a value, where `largest` is the largest absolute value of its map. */
export function levelOf(value: number, largest: number): number {
  if (largest === 0) return 0;
  const level = Math.round((Math.min(Math.abs(value), largest) / largest) * LEVELS);
  return value < 0 ? -level : level;
}

/** The CSS class of a cell. */
export function classOf(value: number, largest: number): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "infinite" : "hidden";
  const level = levelOf(value, largest);
  return level < 0 ? `n${-level}` : `p${level}`;
}

export function css(color: Color): string {
  return `rgb(${color.join(" ")})`;
}

/** The rules of all cell classes; paper is always light. */
export function cellRules(): string {
  const rules = (theme: Theme) =>
    Array.from({ length: 2 * LEVELS + 1 }, (_, i) => i - LEVELS).map((level) => {
      const color = colorOf(level, theme);
      const name = level < 0 ? `n${-level}` : `p${level}`;
      return `:is(.cell,.tint).${name}{background:${css(color)};color:${inkOn(color)}}`;
    });
  return [
    ...rules("light"),
    "@media screen and (prefers-color-scheme:dark){",
    ...rules("dark"),
    "}",
  ].join("");
}
