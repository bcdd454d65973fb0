/** Which weights dropout keeps: heedful's generator (src/heedful/dropout.py), bit for bit. */

const FIRST = 0x7feb352d;
const SECOND = 0x846ca68b;
const GOLDEN = 0x9e3779b9;

/** Whether dropout with probability p keeps the weight of a batch entry, head, query and key. */
export function kept(seed: number, p: number, b: number, h: number, q: number, k: number): boolean {
  const row = rowWord(seed >>> 0, b, h, q);
  const tweak = rowWord(Math.floor(seed / 2 ** 32) >>> 0, b, h, q);
  let word = (Math.imul(k, GOLDEN) + row) >>> 0;
  word = Math.imul(word ^ (word >>> 16), FIRST) >>> 0;
  word = (word ^ tweak) >>> 0;
  word = Math.imul(word ^ (word >>> 15), SECOND) >>> 0;
  word = (word ^ (word >>> 16)) >>> 0;
  return word >= Math.round(p * 2 ** 32);
}

function rowWord(word: number, b: number, h: number, q: number): number {
  const ofBatch = mix((b + word + GOLDEN) >>> 0);
  const ofHead = mix((h + ofBatch + GOLDEN) >>> 0);
  return mix((q + ofHead + GOLDEN) >>> 0);
}

function mix(word: number): number {
  let mixed = Math.imul(word ^ (word >>> 16), FIRST) >>> 0;
  mixed = Math.imul(mixed ^ (mixed >>> 15), SECOND) >>> 0;
  return (mixed ^ (mixed >>> 16)) >>> 0;
}
