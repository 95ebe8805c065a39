// Bundle the page: node build.mjs OUTPUT. Editors and maps, which no panel of ours needs, stay out.
import { build } from "esbuild";

const empty = ["monaco-editor", "react-monaco-editor", "ol"];
await build({
  entryPoints: [new URL("preview.jsx", import.meta.url).pathname],
  outfile: process.argv[2],
  nodePaths: [process.env.NODE_PATH],
  bundle: true,
  format: "iife",
  jsx: "automatic",
  logLevel: "error",
  minify: true,
  define: { "process.env.NODE_ENV": '"production"', global: "globalThis", "process.env": "{}" },
  loader: { ".svg": "dataurl", ".woff2": "dataurl", ".woff": "dataurl", ".ttf": "dataurl" },
  plugins: [
    {
      name: "empty",
      setup(bundle) {
        const names = new RegExp(`^(${empty.join("|")})(/|$)`);
        bundle.onResolve({ filter: names }, (found) => ({ path: found.path, namespace: "empty" }));
        bundle.onLoad({ filter: /.*/, namespace: "empty" }, () => ({
          contents: "module.exports = {}", loader: "js",
        }));
      },
    },
  ],
});
