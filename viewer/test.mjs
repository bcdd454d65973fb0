// Bundle the tests, because Node runs no TypeScript, and run them with Node's own test runner.
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const tests = readdirSync(`${here}/test`).filter((name) => name.endsWith(".test.ts"));
await build({
  absWorkingDir: here,
  entryPoints: tests.map((name) => `test/${name}`),
  bundle: true,
  platform: "node",
  format: "esm",
  outdir: "build/test",
  outExtension: { ".js": ".mjs" },
  sourcemap: "inline",
});
const files = tests.map((name) => `build/test/${name.replace(/\.ts$/, ".mjs")}`);
const run = spawnSync(process.execPath, ["--enable-source-maps", "--test", ...files], { cwd: here, stdio: "inherit" });
process.exit(run.status ?? 1);
