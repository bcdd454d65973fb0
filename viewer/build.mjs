// Build src/ into the one script and the one style sheet that the pages contain, and list the licenses of what is inside.
//
// The script begins with a digest of its sources, by which a test of Python's says whether it is stale.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = resolve(here, "../src/heedful/viewer");

function digest() {
  const hash = createHash("sha256");
  const sources = readdirSync(join(here, "src")).sort().map((name) => join(here, "src", name));
  for (const file of [...sources, join(here, "package-lock.json")]) hash.update(readFileSync(file));
  return hash.digest("hex");
}

const result = await build({
  absWorkingDir: here,
  entryPoints: ["src/main.ts"],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "ascii",
  legalComments: "none",
  metafile: true,
  write: false,
});
const script = result.outputFiles[0].text.trimEnd();
if (/<\/script|<!--/i.test(script)) throw new Error("the script would end its own element");
writeFileSync(join(target, "viewer.js"), `// heedful viewer, built from viewer/src by npm run build; sources: ${digest()}\n${script}\n`);

const style = await build({
  absWorkingDir: here,
  entryPoints: ["src/style.css"],
  minify: true,
  target: "es2022",
  write: false,
});
writeFileSync(join(target, "viewer.css"), style.outputFiles[0].text);

const packages = new Set(
  Object.keys(result.metafile.inputs).flatMap((path) => /^node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1] ?? []),
);
const licenses = [...packages].sort().map((name) => {
  const folder = join(here, "node_modules", name);
  const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((it) => /^licen[sc]e/i.test(it));
  const text = file ? readFileSync(join(folder, file), "utf8").trim() : `Licensed under ${about.license}.`;
  return `${name} ${about.version} (${about.license})\n\n${text}\n`;
});
const rule = `\n${"-".repeat(100)}\n\n`;
writeFileSync(join(target, "licenses.txt"), `viewer.js contains these packages:\n${rule}${licenses.join(rule)}`);
console.log(`viewer.js: ${Math.round(script.length / 1024)} KB, ${packages.size} packages`);
