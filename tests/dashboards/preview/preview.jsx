// Draw one dashboard as Grafana does, from its JSON and a Prometheus; see pictures.py.
// Grafana's own code makes units, thresholds, overrides, transformations and most panels. Heatmaps
// and state timelines are no part of its libraries: a few lines draw them here.
import {
  FieldType, ThresholdsMode, createTheme, dateTime, fieldMatchers, getDisplayProcessor, reduceField,
  renderMarkdown, standardTransformers, standardTransformersRegistry, ThemeContext, toDataFrame, transformDataFrame,
} from "@grafana/data";
import { BarGauge, BigValue, BigValueColorMode, BigValueGraphMode, GlobalStyles, PanelChrome, TimeSeries } from "@grafana/ui";
import { TableNG } from "@grafana/ui/unstable";
import { useEffect, useRef, useState } from "react";
import { createRoot } from "react-dom/client";
import { firstValueFrom } from "rxjs";

const theme = createTheme({ colors: { mode: "dark" } });
const query = new URLSearchParams(location.search);
const from = Number(query.get("from")), to = Number(query.get("to"));
const at = Number(query.get("at") ?? to), step = Number(query.get("step") ?? 15);
const range = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: dateTime(from * 1000), to: dateTime(to * 1000) } };
const CELL = 38, GAP = 8, WIDE = Number(query.get("wide") ?? 1600);
window.report = {};

const unique = new Map(Object.values(standardTransformers).map((one) => [one.id, one]));
standardTransformersRegistry.setInit(() => [...unique.values()].map((one) =>
  ({ id: one.id, name: one.name, transformation: () => Promise.resolve(one), editor: () => null })));

const meant = (expr) => expr.replaceAll("$__rate_interval", `${Math.max(step * 4, 60)}s`)
  .replaceAll("$topk", "10").replaceAll(/"\$\w+"/g, '".+"');
const named = (legend, labels) => !legend || legend === "__auto"
  ? Object.entries(labels).filter(([key]) => key !== "__name__").map(([key, value]) => `${key}="${value}"`).join(", ")
  : legend.replaceAll(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? "");

async function ask(target) {
  const url = target.instant
    ? `/prom/api/v1/query?query=${encodeURIComponent(meant(target.expr))}&time=${at}`
    : `/prom/api/v1/query_range?query=${encodeURIComponent(meant(target.expr))}&start=${from}&end=${to}&step=${step}`;
  const answer = await (await fetch(url)).json();
  if (answer.status !== "success") throw new Error(`${target.refId}: ${answer.error}`);
  return answer.data.result;
}

async function load(panel) {
  const frames = [];
  for (const target of panel.targets ?? []) {
    const found = await ask(target);
    if (target.format === "table") {
      const labels = [...new Set(found.flatMap((one) => Object.keys(one.metric)))].sort();
      frames.push(toDataFrame({ refId: target.refId, fields: [
        { name: "Time", type: FieldType.time, values: found.map((one) => one.value[0] * 1000) },
        ...labels.map((label) => ({ name: label, type: FieldType.string, values: found.map((one) => one.metric[label] ?? "") })),
        { name: "Value", type: FieldType.number, values: found.map((one) => Number(one.value[1])) }] }));
      continue;
    }
    for (const one of found) {
      const got = new Map((target.instant ? [one.value] : one.values).map(([time, value]) => [time, Number(value)]));
      const grid = target.instant ? [...got.keys()] : Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, i) => from + i * step);
      const name = named(target.legendFormat, one.metric);
      frames.push(toDataFrame({ refId: target.refId, name, fields: [
        { name: "Time", type: FieldType.time, values: grid.map((time) => time * 1000) },
        { name: "Value", type: FieldType.number, labels: one.metric, config: { displayNameFromDS: name },
          values: grid.map((time) => { const value = got.get(time); return value == null || Number.isNaN(value) ? null : value; }) }] }));
    }
  }
  const out = panel.transformations?.length ? await firstValueFrom(transformDataFrame(panel.transformations, frames)) : frames;
  let series = 0;
  for (const frame of out) for (const field of frame.fields) {
    const defaults = structuredClone(panel.fieldConfig.defaults);
    field.config = { color: { mode: panel.type === "timeseries" ? "palette-classic" : "thresholds" }, ...defaults, ...field.config,
      custom: { ...(panel.type === "timeseries" ? LINE : {}), ...defaults.custom } };
    field.config.thresholds ??= { mode: ThresholdsMode.Absolute, steps: [{ color: "green", value: null }] };
    field.config.thresholds.steps[0].value ??= -Infinity;
    for (const override of panel.fieldConfig.overrides ?? [])
      if (fieldMatchers.get(override.matcher.id).get(override.matcher.options)(field, frame, out))
        for (const { id, value } of override.properties) put(field.config, id, value);
    const numbers = field.type === FieldType.number ? field.values.filter(Number.isFinite) : [];
    field.state = { seriesIndex: field.type === FieldType.number ? series++ : 0,
      range: { min: Math.min(...numbers, 0), max: Math.max(...numbers, 0), delta: 0 } };
    field.display = getDisplayProcessor({ field, theme });
  }
  return out;
}
const LINE = { drawStyle: "line", lineWidth: 1, fillOpacity: 0, showPoints: "never", axisPlacement: "auto",
  lineInterpolation: "linear", spanNulls: false, hideFrom: { viz: false, legend: false, tooltip: false } };
const put = (into, path, value) => {
  const keys = path.split("."), last = keys.pop();
  keys.reduce((one, key) => (one[key] ??= {}), into)[last] = value;
};
const numbers = (frames) => frames.map((frame) => frame.fields.find((field) => field.type === FieldType.number)).filter(Boolean);

function Canvas({ width, height, draw }) {
  const canvas = useRef(null);
  useEffect(() => {
    const pen = canvas.current.getContext("2d");
    canvas.current.width = width * 2; canvas.current.height = height * 2;
    pen.scale(2, 2);
    pen.font = "11px sans-serif"; pen.textBaseline = "middle";
    draw(pen);
  }, [width, height]);
  return <canvas ref={canvas} style={{ width, height }} />;
}
function times(pen, left, width, y) {
  pen.fillStyle = theme.colors.text.secondary; pen.textAlign = "center";
  const every = to - from > 1800 ? 600 : 120;
  for (let time = Math.ceil(from / every) * every; time < to; time += every)
    pen.fillText(new Date(time * 1000).toISOString().slice(11, 16), left + (width - left) * (time - from) / (to - from), y);
}

function Heatmap({ panel, frames, width, height }) {
  const edge = (field) => (field.labels.le === "+Inf" ? Infinity : Number(field.labels.le));
  const rows = numbers(frames).sort((a, b) => edge(a) - edge(b));
  const cells = rows.map((row, i) => row.values.map((value, j) => Math.max(0, (value ?? 0) - (i ? rows[i - 1].values[j] ?? 0 : 0))));
  const most = Math.max(1, ...cells.flat());
  const unit = getDisplayProcessor({ field: { type: FieldType.number, config: { unit: panel.options.yAxis?.unit } }, theme });
  return <Canvas width={width} height={height} draw={(pen) => {
    const left = 62, down = height - 20, tall = down / rows.length, wide = (width - left) / cells[0].length;
    cells.forEach((row, i) => row.forEach((value, j) => {
      if (!value) return;
      pen.fillStyle = `hsl(${40 - 26 * Math.sqrt(value / most)} 92% ${28 + 34 * Math.sqrt(value / most)}%)`;
      pen.fillRect(left + j * wide, down - (i + 1) * tall, Math.ceil(wide), Math.max(1, tall - 1));
    }));
    pen.textAlign = "right"; pen.fillStyle = theme.colors.text.secondary;
    rows.forEach((row, i) => { if (i % 2 === 0) { const e = edge(row), shown = unit(e);
      pen.fillText(Number.isFinite(e) ? shown.text + (shown.suffix ?? "") : "more", left - 6, down - (i + .5) * tall); } });
    times(pen, left, width, height - 8);
  }} />;
}

function States({ frames, width, height }) {
  const rows = numbers(frames);
  return <Canvas width={width} height={height} draw={(pen) => {
    const left = 150, down = height - 20, tall = down / rows.length;
    rows.forEach((row, i) => {
      pen.textAlign = "right"; pen.fillStyle = theme.colors.text.secondary;
      pen.fillText(row.config.displayNameFromDS, left - 6, (i + .5) * tall);
      row.values.forEach((value, j) => {
        if (value == null) return;
        pen.fillStyle = row.display(value).color ?? "#888";
        pen.fillRect(left + (width - left) * j / row.values.length, i * tall + 4, Math.ceil((width - left) / row.values.length), tall - 8);
      });
    });
    times(pen, left, width, height - 8);
  }} />;
}

function Body({ panel, frames, width, height }) {
  if (panel.type === "text")
    return <div className="markdown-html" style={{ fontSize: 13 }} dangerouslySetInnerHTML={{ __html: renderMarkdown(panel.options.content) }} />;
  const shown = numbers(frames);
  if (!shown.length && panel.type !== "table") return <p>no data</p>;
  if (panel.type === "timeseries")
    return <TimeSeries width={width} height={height} frames={frames} structureRev={1} timeRange={range} timeZone="utc" legend={panel.options.legend} options={panel.options} />;
  if (panel.type === "stat" || panel.type === "gauge") {
    const field = shown[0], last = field.values.findLast((value) => value != null);
    return <BigValue width={width} height={height} theme={theme} value={field.display(last ?? null)} colorMode={BigValueColorMode.Value} graphMode={BigValueGraphMode.Area}
      sparkline={{ y: field, x: frames[0].fields[0] }} />;
  }
  if (panel.type === "bargauge") {
    const most = Math.max(...shown.map((field) => field.values[0] ?? 0), 1);
    return <div>{shown.sort((a, b) => b.values[0] - a.values[0]).map((field, i) =>
      <BarGauge key={i} width={width} height={height / shown.length - 6} itemSpacing={6} theme={theme} orientation="horizontal" displayMode="basic"
        field={{ ...field.config, min: 0, max: most }} display={field.display} value={{ ...field.display(field.values[0]), title: field.config.displayNameFromDS }} />)}</div>;
  }
  if (panel.type === "heatmap") return <Heatmap panel={panel} frames={frames} width={width} height={height} />;
  if (panel.type === "state-timeline") return <States frames={frames} width={width} height={height} />;
  if (panel.type === "table") return <TableNG width={width} height={height} data={frames[0]} enableVirtualization={false} />;
  return <p>no such panel: {panel.type}</p>;
}

function Panel({ panel }) {
  const [frames, setFrames] = useState(null), [trouble, setTrouble] = useState("");
  const box = useRef(null);
  useEffect(() => {
    if (panel.type !== "row") load(panel).then(setFrames, (error) => setTrouble(String(error.message)));
  }, []);
  useEffect(() => {
    if (!frames && !trouble) return;
    setTimeout(() => {
      window.report[panel.title] = { trouble, canvases: box.current.querySelectorAll("canvas").length, text: box.current.innerText };
    }, 400);
  }, [frames, trouble]);
  const { x, y, w, h } = panel.gridPos;
  const width = WIDE / 24 * w - GAP, height = CELL * h - GAP;
  const place = { position: "absolute", left: WIDE / 24 * x, top: CELL * y, width, height };
  if (panel.type === "row") {
    window.report[panel.title] = { trouble: "", canvases: 0, text: panel.title };
    return <div style={{ ...place, fontWeight: 500, paddingTop: 6 }}>{panel.title}</div>;
  }
  return <div style={place} ref={box}><PanelChrome title={panel.title} width={width} height={height} padding="md" description={panel.description}>
    {(inner, tall) => trouble ? <p>{trouble}</p> : frames && <Body panel={panel} frames={frames} width={inner} height={tall} />}
  </PanelChrome></div>;
}

async function main() {
  const board = await (await fetch(query.get("board"))).json();
  const high = Math.max(...board.panels.map(({ gridPos }) => gridPos.y + gridPos.h)) * CELL;
  window.panels = board.panels.length;
  createRoot(document.getElementById("root")).render(
    <ThemeContext.Provider value={theme}><GlobalStyles />
      <div style={{ position: "relative", width: WIDE, height: high + 48, margin: 12 }}>
        <h3 style={{ margin: "0 0 12px" }}>{board.title}</h3>
        <div style={{ position: "relative" }}>{board.panels.map((panel) => <Panel key={panel.id} panel={panel} />)}</div>
      </div></ThemeContext.Provider>);
}
main();
