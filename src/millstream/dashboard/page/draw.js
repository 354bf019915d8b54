// Drawing: the graph as SVG, series as charts. Values of users reach the page as text nodes only, never as markup.
"use strict";

const COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];
const BOX = { width: 190, height: 74, across: 270, down: 100 };

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(name, attributes = {}, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function shorten(text, most) {
  return text.length > most ? text.slice(0, most - 1) + "…" : text;
}

function drawGraph(svg, picture, lines, flows, holders) {
  const rows = picture.nodes.map((node) => node.row);
  const top = Math.min(0, ...rows), bottom = Math.max(0, ...rows);
  const columns = Math.max(0, ...picture.nodes.map((node) => node.column));
  const width = columns * BOX.across + BOX.width + 20, height = (bottom - top) * BOX.down + BOX.height + 60;
  const place = {};
  for (const node of picture.nodes) place[node.id] = [10 + node.column * BOX.across, 20 + (node.row - top) * BOX.down];
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  for (const edge of picture.edges) {
    const [x1, y1] = place[edge.source], [x2, y2] = place[edge.target];
    const from = [x1 + BOX.width, y1 + BOX.height / 2], to = [x2, y2 + BOX.height / 2];
    const way = edge.back
      ? `M${from} C${from[0] + 50},${from[1] + 80} ${to[0] - 50},${to[1] + 80} ${to}`
      : `M${from} C${from[0] + 45},${from[1]} ${to[0] - 45},${to[1]} ${to}`;
    const path = shape("path", { d: way, class: flows[edge.stream] ? "flows" : "" });
    path.append(shape("title", {}, `${edge.stream}: ${flows[edge.stream] || "no"} records a second`));
    svg.append(path);
  }
  for (const node of picture.nodes) {
    const [x, y] = place[node.id];
    const group = shape("g", { class: `node ${node.kind}${holders.has(node.id) ? " holds" : ""}`, transform: `translate(${x} ${y})` });
    group.append(shape("rect", { width: BOX.width, height: BOX.height, rx: node.kind === "computation" ? 8 : 2 }));
    group.append(shape("text", { x: 10, y: 20 }, shorten(node.name, 24)), shape("title", {}, `${node.kind} ${node.name}`));
    (lines[node.id] || []).forEach((line, nth) => group.append(shape("text", { x: 10, y: 38 + 15 * nth, class: "soft" }, shorten(line, 30))));
    svg.append(group);
  }
}

const charts = new Map();

// Series by name over the same x; a chart is made anew when its series change.
function drawChart(id, xs, series, options = {}) {
  const place = document.getElementById(id);
  const names = Object.keys(series);
  const wanted = JSON.stringify([names, place.clientWidth, options.bars || false, matchMedia("(prefers-color-scheme: dark)").matches]);
  const data = [xs, ...names.map((name) => series[name])];
  const known = charts.get(id);
  if (known && known.wanted === wanted) {
    known.chart.setData(data);
    return;
  }
  if (known) known.chart.destroy();
  const ink = colour("--soft"), grid = { stroke: colour("--line"), width: 1 };
  const axis = { stroke: ink, grid, ticks: grid };
  const settings = {
    width: Math.max(260, place.clientWidth),
    height: 200,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "UTC"),
    scales: { y: { range: options.range } },
    axes: [{ ...axis, values: (u, ticks) => times(ticks) }, { ...axis, size: options.times ? 90 : 60, values: options.values }],
    cursor: { points: { show: false } },
    legend: { show: names.length > 0, live: false },
    series: [{}, ...names.map((name, nth) => ({
      label: shorten(name, 40), stroke: colour(COLOURS[nth % COLOURS.length]), width: 1.5, spanGaps: true, points: { show: xs.length < 40 },
      ...(options.bars ? { paths: uPlot.paths.bars({ size: [0.9, 20] }), fill: colour(COLOURS[nth % COLOURS.length]), points: { show: false } } : {}),
    }))],
  };
  place.replaceChildren();
  charts.set(id, { wanted, chart: new uPlot(settings, data, place) });
}

// As much of each time as tells them apart.
function times(ticks) {
  const span = ticks.length > 1 ? ticks[ticks.length - 1] - ticks[0] : 0;
  return ticks.map((tick) => span > 172800 ? utc(tick * 1e6).slice(5, 10) : span > 600 ? utc(tick * 1e6).slice(11, 16) : utc(tick * 1e6).slice(11, 19));
}

function utc(microseconds) {
  return new Date(microseconds / 1000).toISOString().replace("T", " ").slice(0, 19);
}
