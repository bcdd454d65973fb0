/** Tiles of weights, which the page's server computes from the queries and keys of a head. */

import type { Blocks, Place } from "./heads.js";
import type { Rectangle } from "./zoom.js";

/** Blocks along a side of a tile that are requested. */
const CELLS = 256;
/** The most blocks along a side that the server computes at once. */
const MOST_CELLS = 1024;

export type Fetch = (address: string) => Promise<Response>;

export class Tiles {
  private readonly known = new Map<string, Promise<Blocks>>();

  /**
   * @param address Where the server answers, relative to the page.
   * @param places The place of each layer among all attentions.
   * @param request What asks it.
   */
  constructor(
    private readonly address: string, private readonly places: readonly number[],
    private readonly request: Fetch = (address) => fetch(address),
  ) {}

  /** The mean and maximum of a part of a head's weights, in at most cells × cells blocks. */
  tile(place: Place, part: Rectangle, cells = CELLS): Promise<Blocks> {
    const address = `${this.address}?layer=${this.places[place.layer]!}&head=${place.head}&rows=${part.top}:${part.bottom}` +
      `&columns=${part.left}:${part.right}&cells=${cells}`;
    const known = this.known.get(address);
    if (known !== undefined) return known;
    const wanted = this.load(address, part);
    this.known.set(address, wanted);
    wanted.catch(() => this.known.delete(address));
    const oldest = this.known.keys().next();
    if (this.known.size > 64 && oldest.done !== true) this.known.delete(oldest.value);
    return wanted;
  }

  /** All weights of a query. */
  async row(place: Place, query: number, keys: number): Promise<Float32Array> {
    const starts = Array.from({ length: Math.ceil(keys / MOST_CELLS) }, (_, i) => i * MOST_CELLS);
    const parts = await Promise.all(starts.map((left) => this.tile(
      place, { top: query, bottom: query + 1, left, right: Math.min(keys, left + MOST_CELLS) }, MOST_CELLS)));
    return Float32Array.from(parts.flatMap((part) => Array.from(part.mean.values)));
  }

  private async load(address: string, part: Rectangle): Promise<Blocks> {
    const answer = await this.request(address);
    if (!answer.ok) throw new Error(`The server answered ${answer.status}: ${(await answer.text()).slice(0, 200)}`);
    const [rows, columns] = ["X-Rows", "X-Columns"].map((name) => Number(answer.headers.get(name))) as [number, number];
    return readTile(await answer.arrayBuffer(), rows, columns, part);
  }
}

/** Read the bytes of a tile: the means of its blocks row by row, then their maxima, as float32 in little-endian order. */
export function readTile(bytes: ArrayBuffer, rows: number, columns: number, part: Rectangle): Blocks {
  const size = rows * columns;
  if (!(size > 0) || bytes.byteLength !== 8 * size) {
    throw new Error(`The server answered ${bytes.byteLength} bytes for ${rows} × ${columns} blocks.`);
  }
  const view = new DataView(bytes);
  const numbers = Float32Array.from({ length: 2 * size }, (_, i) => view.getFloat32(4 * i, true));
  const cells = {
    ...part, rows, columns,
    cellRows: Math.ceil((part.bottom - part.top) / rows),
    cellColumns: Math.ceil((part.right - part.left) / columns),
  };
  return { mean: { ...cells, values: numbers.subarray(0, size) }, largest: { ...cells, values: numbers.subarray(size) } };
}
