import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";
import { coloringsOf } from "../src/colorings.js";
import {
  colorLimit, differenceOf, found, isSingle, largestOfRow, readHead, rowOf, sortedHeads, topKeysOf, valuesWithin,
  type Cells, type Layer, type Model, type PackedHead, type Statistic,
} from "../src/heads.js";
import { levelOfWeight } from "../src/heatmap.js";
import { readTile, Tiles } from "../src/tiles.js";
import { blockAt, centeredOn, covers, movedTo, needsFiner, snapped, spanOf, wholeMap, zoomed } from "../src/zoom.js";

const BOUNDS = wholeMap(1000, 1000);

function cells(part: Partial<Cells> = {}): Cells {
  return { top: 0, left: 0, bottom: 1000, right: 1000, cellRows: 10, cellColumns: 10, rows: 100, columns: 100, values: [], ...part };
}

/** Compressed bytes of arrays one after another, and where they are. */
function packed(arrays: Record<string, { data: Float32Array | Uint16Array | Uint8Array | Int32Array; shape: number[]; [more: string]: unknown }>): [ArrayBuffer, PackedHead] {
  const described: Record<string, unknown> = {};
  const parts: Buffer[] = [];
  let start = 0;
  for (const [name, { data, shape, ...rest }] of Object.entries(arrays)) {
    const dtype = data instanceof Float32Array ? "f4" : data instanceof Uint16Array ? "u2" : data instanceof Uint8Array ? "u1" : "i4";
    const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
    described[name] = { dtype, shape, start, ...rest };
    parts.push(bytes, Buffer.alloc((8 - (bytes.length % 8)) % 8));
    start += bytes.length + ((8 - (bytes.length % 8)) % 8);
  }
  const compressed = deflateSync(Buffer.concat(parts));
  const whole = new Uint8Array(16 + compressed.length);
  whole.set(compressed, 16);
  return [whole.buffer, { at: 16, bytes: compressed.length, arrays: described as PackedHead["arrays"] }];
}

function layer(queries: number, keys = queries): Layer {
  return { place: 0, name: "", short: "0", queries, keys, overview: null, heads: [] };
}

test("a head is inflated, and rounded numbers are scaled", async () => {
  const [bytes, head] = packed({
    mean: { data: Uint8Array.of(0, 255, 128, 10), shape: [2, 2], scale: 0.001, squared: true, cell: [3, 2] },
    largest: { data: Uint16Array.of(0, 65535, 2, 1), shape: [2, 2], scale: 1 / 65535 },
    entropy: { data: Float32Array.of(0.5, 1.5), shape: [2], block: 3 },
    top_weights: { data: Float32Array.of(0.75, 0.25), shape: [1, 2] },
    top_keys: { data: Int32Array.of(4, -1), shape: [1, 2] },
  });
  const read = await readHead(layer(5, 4), head, bytes);
  const { mean, largest } = read.blocks!;
  assert.deepEqual([mean.cellRows, mean.cellColumns, mean.bottom, mean.right], [3, 2, 5, 4]);
  assert.ok(Math.abs(mean.values[1]! - 65.025) < 1e-4);
  assert.equal(largest.values[1], 1);
  assert.equal(read.tokens["entropy"]!.block, 3);
  assert.deepEqual(topKeysOf(read, 0, 8), [{ key: 4, weight: 0.75 }]);
  assert.equal(rowOf(read, 0), null);
  assert.ok(!isSingle(mean));
  const [entropy] = coloringsOf([read], 0, null).filter((it) => it.name === "their entropy");
  assert.deepEqual([0, 2, 3, 4].map((token) => entropy!.value(token)), [0.5, 0.5, 1.5, 1.5]);
});

test("a row of all weights has its largest keys; of equal ones, the earlier comes first", async () => {
  const [bytes, head] = packed({ weights: { data: Float32Array.of(1, 0, 0, 0.25, 0.5, 0.25, 0.25, 0.5, 0.25), shape: [3, 3] } });
  const read = await readHead(layer(3), head, bytes);
  assert.ok(read.exact);
  assert.deepEqual(rowOf(read, 1), [0.25, 0.5, 0.25]);
  assert.deepEqual(topKeysOf(read, 1, 2), [{ key: 1, weight: 0.5 }, { key: 0, weight: 0.25 }]);
  assert.deepEqual(topKeysOf(read, 0, 8), [{ key: 0, weight: 1 }]);
  assert.deepEqual(largestOfRow([0, 0], 2), []);
  const [row] = coloringsOf([read], 2, null);
  assert.equal(row!.value(1), 0.5);
  assert.equal(coloringsOf([read], 2, [0.1, 0.2, 0.7])[0]!.value(2), 0.7); // what the server sent comes first
});

test("colors do not follow the few largest blocks", () => {
  const values = Array.from({ length: 1000 }, (_, i) => (i < 4 ? 1 : i < 500 ? 1e-5 : 0));
  assert.equal(colorLimit(values, false), 1e-5);
  assert.equal(colorLimit(values, true), 1);
  assert.equal(colorLimit([0, 0], false), 0);
  assert.equal(colorLimit([-0.5, 0.25], true), 0.5);
  assert.equal(levelOfWeight(1, 1e-5), 24);
  assert.equal(levelOfWeight(0.25, 1), 12); // the square root
  assert.equal(levelOfWeight(-0.25, 1), -12);
  assert.equal(levelOfWeight(1, 0), 0);
});

test("the scale of a part is that of its blocks", () => {
  const map = cells({ top: 10, left: 0, bottom: 15, right: 6, cellRows: 2, cellColumns: 3, rows: 3, columns: 2, values: [1, 2, 3, 4, 5, 6] });
  assert.deepEqual(valuesWithin(map, { top: 12, bottom: 15, left: 3, right: 6 }), [4, 6]);
  assert.deepEqual(valuesWithin(map, { top: 10, bottom: 12, left: 0, right: 6 }), [1, 2]);
});

test("the difference of two maps needs the same blocks", () => {
  const one = cells({ values: [0.5, 0.25], rows: 1, columns: 2 });
  assert.deepEqual([...differenceOf(one, { ...one, values: [0.25, 0.5] })!.values as number[]], [0.25, -0.25]);
  assert.equal(differenceOf(one, { ...one, cellRows: 20 }), null);
});

test("heads are sorted by any statistic, and those without a number come last", () => {
  const head: PackedHead = { at: 0, bytes: 0, arrays: {} };
  const model: Model = { title: "", statistics: [], layers: [{ ...layer(1), heads: [head, head] }, { ...layer(1), heads: [head, head] }] };
  const statistic: Statistic = { name: "", about: "", values: [[0.5, null], [0.75, 0.5]] };
  const order = (descending: boolean, only: number | null = null, by: Statistic | null = statistic) =>
    sortedHeads(model, by, descending, only).map((it) => `${it.layer}.${it.head}`).join(" ");
  assert.equal(order(true), "1.0 0.0 1.1 0.1");
  assert.equal(order(false), "0.0 1.1 1.0 0.1");
  assert.equal(order(true, 1), "1.0 1.1");
  assert.equal(order(true, null, null), "0.0 0.1 1.0 1.1");
});

test("a token is found in any case of letters", () => {
  assert.deepEqual(found(["The", " the", "cat"], "THE"), [0, 1]);
  assert.deepEqual(found(["a"], ""), []);
});

test("zooming keeps the place that is pointed at, and stays within the map", () => {
  const once = zoomed(BOUNDS, BOUNDS, 0.5, [200, 800], [8, 8]);
  assert.deepEqual(once, { top: 100, bottom: 600, left: 400, right: 900 });
  assert.deepEqual(zoomed(once, BOUNDS, 2, [200, 800], [8, 8]), BOUNDS);
  assert.deepEqual(zoomed(once, BOUNDS, 16, [100, 400], [8, 8]), BOUNDS);
  let part = BOUNDS;
  for (let i = 0; i < 30; i++) part = zoomed(part, BOUNDS, 0.5, [999, 0], [8, 8]);
  assert.deepEqual(part, { top: 992, bottom: 1000, left: 0, right: 8 });
  const narrow = wholeMap(4, 1000);
  assert.deepEqual(zoomed(narrow, narrow, 0.5, [0, 0], [8, 8]), narrow); // fewer tokens than the least part
});

test("the view follows the keyboard, and centers on what was found", () => {
  const part = { top: 100, bottom: 200, left: 300, right: 400 };
  assert.deepEqual(movedTo(part, BOUNDS, [150, 350]), part);
  assert.deepEqual(movedTo(part, BOUNDS, [200, 299]), { top: 101, bottom: 201, left: 299, right: 399 });
  assert.deepEqual(centeredOn(part, BOUNDS, [990, 10]), { top: 900, bottom: 1000, left: 0, right: 100 });
});

test("parts are drawn in whole blocks", () => {
  assert.deepEqual(snapped({ top: 15, bottom: 21, left: 0, right: 995 }, cells(), BOUNDS), { top: 10, bottom: 30, left: 0, right: 1000 });
  const tile = cells({ top: 15, bottom: 60, left: 7, right: 50, cellRows: 4, cellColumns: 4 });
  assert.deepEqual(snapped({ top: 20, bottom: 30, left: 8, right: 12 }, tile, BOUNDS), { top: 19, bottom: 31, left: 7, right: 15 });
  assert.deepEqual(blockAt(tile, 19, 7), [1, 0]);
  assert.deepEqual(spanOf(15, 4, 11, 60), [59, 59]); // the last block is smaller
  assert.ok(covers(tile, { top: 15, bottom: 60, left: 7, right: 50 }));
  assert.ok(!covers(tile, BOUNDS));
});

test("the server is asked where blocks are large on the screen, and never for less than single weights", () => {
  assert.ok(!needsFiner(cells({ cellRows: 2, cellColumns: 2 }), BOUNDS));
  assert.ok(needsFiner(cells(), { top: 0, bottom: 500, left: 0, right: 500 }));
  assert.ok(!needsFiner(cells({ cellRows: 1, cellColumns: 1 }), { top: 0, bottom: 8, left: 0, right: 8 }));
});

const PLACES = [0, 3, 7];

/** A server that answers with numbers that say which weights they stand for. */
function server(status = 200): { asked: string[]; request: (address: string) => Promise<Response> } {
  const asked: string[] = [];
  return {
    asked,
    request: (address) => {
      asked.push(address);
      if (status !== 200) return Promise.resolve(new Response("No such head.", { status }));
      const query = new URLSearchParams(address.split("?")[1]);
      const span = (name: string) => query.get(name)!.split(":").map(Number) as [number, number];
      const [rows, columns] = [span("rows"), span("columns")];
      const most = Number(query.get("cells"));
      const steps = [rows, columns].map(([first, last]) => Math.ceil((last - first) / most)) as [number, number];
      const counts = [Math.ceil((rows[1] - rows[0]) / steps[0]), Math.ceil((columns[1] - columns[0]) / steps[1])] as [number, number];
      const values = Array.from({ length: counts[0] * counts[1] }, (_, i) =>
        rows[0] + Math.floor(i / counts[1]) * steps[0] + (columns[0] + (i % counts[1]) * steps[1]) / 1e4);
      const bytes = Float32Array.from([...values, ...values.map((it) => it + 0.5)]);
      return Promise.resolve(new Response(bytes, { headers: { "X-Rows": String(counts[0]), "X-Columns": String(counts[1]) } }));
    },
  };
}

test("a tile is asked for by its place, read, and kept", async () => {
  const { asked, request } = server();
  const tiles = new Tiles("tile", PLACES, request);
  const part = { top: 100, bottom: 700, left: 0, right: 300 };
  const { mean, largest } = await tiles.tile({ layer: 2, head: 5 }, part);
  assert.equal(asked[0], "tile?layer=7&head=5&rows=100:700&columns=0:300&cells=256");
  assert.deepEqual([mean.rows, mean.columns, mean.cellRows, mean.cellColumns], [200, 150, 3, 2]);
  assert.ok(Math.abs(mean.values[mean.columns + 1]! - 103.0002) < 1e-4);
  assert.ok(Math.abs(largest.values[0]! - 100.5) < 1e-4);
  await tiles.tile({ layer: 2, head: 5 }, part);
  assert.equal(asked.length, 1);
});

test("zooming ends at single weights", async () => {
  const tiles = new Tiles("tile", PLACES, server().request);
  let part = BOUNDS;
  let drawn = cells();
  for (let i = 0; i < 9; i++) {
    part = zoomed(part, BOUNDS, 0.5, [500, 500], [8, 8]);
    if (!covers(drawn, part) || needsFiner(drawn, part)) drawn = (await tiles.tile({ layer: 0, head: 0 }, part)).mean;
  }
  assert.ok(isSingle(drawn));
  const [row, column] = blockAt(drawn, 500, 499);
  assert.ok(Math.abs(drawn.values[row * drawn.columns + column]! - 500.0499) < 1e-3);
});

test("a row is asked for in pieces that the server computes", async () => {
  const { asked, request } = server();
  const row = await new Tiles("tile", PLACES, request).row({ layer: 0, head: 1 }, 7, 2500);
  assert.deepEqual(asked.map((it) => /columns=([\d:]+)/.exec(it)![1]), ["0:1024", "1024:2048", "2048:2500"]);
  assert.equal(row.length, 2500);
  assert.ok(Math.abs(row[2499]! - 7.2499) < 1e-4);
});

test("what the server refuses or garbles is an error, and is asked for again", async () => {
  const { asked, request } = server(400);
  const tiles = new Tiles("tile", PLACES, request);
  for (let i = 0; i < 2; i++) await assert.rejects(tiles.tile({ layer: 1, head: 0 }, BOUNDS), /400: No such head/);
  assert.equal(asked.length, 2);
  assert.throws(() => readTile(new ArrayBuffer(12), 1, 1, BOUNDS), /12 bytes/);
  assert.throws(() => readTile(new ArrayBuffer(0), NaN, 2, BOUNDS), /bytes/);
});
