/** Numbers as text. */

/** A number for a cell: as short as its column's scale allows. */
export function cellText(value: number, largest: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  if (largest >= 1e4 || largest < 1e-3) return minus(value.toExponential(1));
  return minus(withoutNegativeZero(value.toFixed(largest >= 100 ? 0 : largest >= 10 ? 1 : 2)));
}

/** A number with enough digits to recompute with it. */
export function exactText(value: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-4)) return minus(value.toExponential(3));
  return minus(withoutNegativeZero(value.toFixed(4)));
}

/** A whole number or a short decimal, for parameters such as the scale. */
export function shortText(value: number): string {
  return minus(String(Number(value.toPrecision(4)))).replace("Infinity", "∞");
}

/** A number of three digits, all of which are written. */
export function threeDigits(value: number): string {
  const size = Math.abs(value);
  return minus(size >= 1000 ? value.toFixed(0) : size !== 0 && size < 1e-3 ? value.toExponential(2) : value.toPrecision(3));
}

function withoutNegativeZero(text: string): string {
  return /^-0\.?0*$/.test(text) ? text.slice(1) : text;
}

function minus(text: string): string {
  return text.replace("-", "−");
}
