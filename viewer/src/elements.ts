/** Elements of the page. Text is only ever set as text. */

type Content = globalThis.Node | string | null;

export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string | number | boolean | null> = {},
  ...content: readonly Content[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...content.filter((part) => part !== null));
  return element;
}

/** The longest label that is drawn whole: a token may be a megabyte. */
const LONGEST = 24;

/** A token's label as it is drawn: control characters become visible, and a long one is cut. */
export function labelText(label: string): string {
  const whole = [...label.slice(0, 4 * LONGEST)].map(visible);
  const shown = whole.slice(0, LONGEST).join("");
  if (/^ *$/.test(shown)) return shown === "" ? "∅" : "␣".repeat(shown.length);
  return whole.length > LONGEST ? `${shown}…` : shown;
}

/** Signs of control characters that tokens often are, which more fonts have than those of Unicode's control pictures. */
const SIGNS: Readonly<Record<number, string>> = { 9: "⇥", 10: "↵", 13: "⏎" };

function visible(letter: string): string {
  const code = letter.codePointAt(0)!;
  if (SIGNS[code] !== undefined) return SIGNS[code];
  if (code < 32) return String.fromCodePoint(0x2400 + code);
  if (code === 127) return "␡";
  // Marks that change the direction or the width of what follows, and halves of pairs.
  const invisible = /[\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Cc}\u2028\u2029]/u.test(letter) && code !== 0x200d;
  return invisible ? "\ufffd" : letter;
}

/** A label in an element that keeps its direction from its neighbors. */
export function label(text: string): HTMLElement {
  return make("bdi", { title: text.length > LONGEST ? text.slice(0, 200) : null }, labelText(text));
}

let made = 0;

/** An identifier that no other element has. */
export function uniqueId(name: string): string {
  made += 1;
  return `${name}-${made}`;
}

/** The level of headings in a view: one below the last heading before it. */
export function levelWithin(root: HTMLElement): number {
  const before = [...document.querySelectorAll("h1, h2, h3, h4, h5")].filter(
    (it) => !root.contains(it) && (it.compareDocumentPosition(root) & Node.DOCUMENT_POSITION_FOLLOWING) !== 0);
  return Math.min(6, Number(before.at(-1)?.tagName.slice(1) ?? 1) + 1);
}

export function heading(level: number, attributes: Record<string, string>, ...content: readonly Content[]): HTMLElement {
  return make(`h${Math.min(level, 6)}` as "h2", { ...attributes, class: "title" }, ...content);
}
