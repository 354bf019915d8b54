// Drawing: the graph as SVG, series as charts.
"use strict";

const COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];
const BOX = { width: 186, height: 82 };
const PORT = { width: 118, height: 38 };
const SLOT = 14, BETWEEN = 26, ACROSS = BOX.width + PORT.width + 48;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
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

let drawn = { for: "", boxes: new Map(), streams: new Map() };

// Boxes with their streams to the right of them. Drawn when the picture changes; `update` of what comes back changes what it says.
function drawGraph(svg, picture, open) {
  const wanted = JSON.stringify(picture);
  if (drawn.for === wanted) return drawn;
  drawn = { for: wanted, boxes: new Map(), streams: new Map() };
  const outputs = new Map(picture.nodes.map((node) => [node.id, []]));
  for (const edge of picture.edges) if (!outputs.get(edge.source).includes(edge.stream)) outputs.get(edge.source).push(edge.stream);
  const { places, width, height } = placed(picture, outputs);
  svg.replaceChildren();
  setAttribute(svg, "viewBox", `0 0 ${width} ${height}`);
  svg.style.maxWidth = `${width}px`;
  svg.style.minWidth = `${width * 0.75}px`;
  const lines = svg.appendChild(shape("g", { "aria-hidden": "true" }));
  for (const node of picture.nodes) {
    const { x, y } = places.get(node), streams = outputs.get(node.id);
    drawn.boxes.set(node.id, drawBox(svg, node, x, y - BOX.height / 2));
    streams.forEach((stream, nth) => {
      const at = [x + BOX.width, y + (nth - (streams.length - 1) / 2) * PORT.height];
      const port = drawPort(svg, stream, ...at, open);
      port.paths.push(lines.appendChild(shape("path", { d: `M${at} h${PORT.width}` })));
      drawn.streams.set(stream, port);
    });
  }
  const byId = new Map(picture.nodes.map((node) => [node.id, node]));
  for (const edge of picture.edges) {
    const port = drawn.streams.get(edge.stream);
    const d = edge.target === null ? `M${port.end} m0,-6 v12` : way(port.end, [...edge.via, byId.get(edge.target)].map((each) => places.get(each)), edge.back, height);
    port.paths.push(lines.appendChild(shape("path", { d })));
  }
  return drawn;
}

// Columns from left to right, each centred; what stands in one is as high as it is or as its streams are. `y` is its middle.
function placed(picture, outputs) {
  const places = new Map(), columns = new Map();
  const all = [...picture.nodes, ...picture.edges.flatMap((edge) => edge.via)].sort((a, b) => a.row - b.row);
  for (const each of all) columns.set(each.column, [...(columns.get(each.column) || []), each]);
  const tall = (each) => each.id === undefined ? SLOT : Math.max(BOX.height, outputs.get(each.id).length * PORT.height);
  const sum = (column) => column.reduce((total, each) => total + tall(each) + BETWEEN, -BETWEEN);
  const highest = Math.max(0, ...[...columns.values()].map(sum));
  for (const [nth, column] of columns) {
    let y = 8 + (highest - sum(column)) / 2;
    for (const each of column) {
      places.set(each, { x: 8 + nth * ACROSS, y: y + tall(each) / 2, past: each.id === undefined ? BOX.width + PORT.width : 0 });
      y += tall(each) + BETWEEN;
    }
  }
  const right = picture.nodes.map((node) => places.get(node).x + BOX.width + (outputs.get(node.id).length ? PORT.width + 30 : 0));
  return { places, width: Math.max(0, ...right) + 8, height: highest + (picture.edges.some((edge) => edge.back) ? 40 : 16) };
}

// From a stream's end to a box, straight through the places on the way; back along the bottom.
function way([x, y], places, back, bottom) {
  if (back) {
    const [{ x: x2, y: y2 }] = places, low = bottom - 6;
    return `M${x},${y} C${x + 30},${y} ${x + 30},${low} ${x - 20},${low} L${x2 + 20},${low} C${x2 - 30},${low} ${x2 - 30},${y2} ${x2},${y2}`;
  }
  const parts = [`M${x},${y}`];
  for (const place of places) {
    parts.push(`C${x + 24},${y} ${place.x - 24},${place.y} ${place.x},${place.y} h${place.past}`);
    [x, y] = [place.x + place.past, place.y];
  }
  return parts.join(" ");
}

function drawBox(svg, node, x, y) {
  const group = svg.appendChild(shape("g", { class: `node ${node.kind}`, transform: `translate(${x} ${y})`, role: "img" }));
  group.append(shape("rect", { width: BOX.width, height: BOX.height, rx: node.kind === "computation" ? 8 : 2 }));
  group.append(shape("title", {}, `${node.kind} ${node.name}`), shape("text", { x: 10, y: 21 }, shorten(node.name, 24)));
  const texts = [39, 55, 71].map((at) => group.appendChild(shape("text", { x: 10, y: at, class: "soft" })));
  return {
    update(lines, holds) {
      texts.forEach((text, nth) => setText(text, shorten(lines[nth] || "", 30)));
      group.classList.toggle("holds", holds);
      setAttribute(group, "aria-label", [`${node.kind} ${node.name}`, ...lines, ...(holds ? ["holds the low watermark back"] : [])].join(", "));
    },
  };
}

// A stream on its line: the name above it, how much flows below it.
function drawPort(svg, stream, x, y, open) {
  const group = svg.appendChild(shape("g", { class: "port", transform: `translate(${x} ${y})`, role: "button", tabindex: "0" }));
  const half = PORT.height / 2 - 1, paths = [];
  group.append(shape("title", {}, stream), shape("rect", { x: 4, y: -half, width: PORT.width - 4, height: 2 * half, rx: 3 }));
  group.append(shape("text", { x: 9, y: -6 }, shorten(stream.slice(stream.lastIndexOf(".") + 1), 17)));
  const rate = group.appendChild(shape("text", { x: 9, y: 13, class: "soft" }));
  group.addEventListener("click", () => open(stream));
  group.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    open(stream);
  });
  return {
    end: [x + PORT.width, y],
    paths,
    update(a_second, total) {
      setText(rate, a_second ? rateText(a_second) : `${count.format(total)} in all`);
      setAttribute(group, "aria-label", `stream ${stream}: ${rateText(a_second)}, ${count.format(total)} in all; show its records`);
      for (const path of paths) path.classList.toggle("flows", a_second > 0);
    },
  };
}

const charts = new Map();
const STEPS = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800, 2592000, 31536000, 315360000];  // seconds
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });
const compact = (u, ticks) => ticks.map((tick) => short.format(tick));

// Series by name over the same x; a chart is made anew when its series change.
function drawChart(id, xs, series, options = {}) {
  const place = by(id), names = Object.keys(series);
  const wanted = JSON.stringify([names, place.clientWidth, matchMedia("(prefers-color-scheme: dark)").matches]);
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
    axes: [{ ...axis, space: 70, values: (u, ticks) => times(ticks) }, { ...axis, size: options.times ? 74 : 60, values: options.values || compact, ...(options.times ? { incrs: STEPS } : {}) }],
    cursor: { points: { show: false } },
    legend: { show: names.length > 0, live: false },
    series: [{}, ...names.map((name, nth) => ({
      label: shorten(name, 40), stroke: colour(COLOURS[nth % COLOURS.length]), width: 1.5, spanGaps: Boolean(options.sparse), points: { show: xs.length < 40 },
      ...(options.bars ? { paths: uPlot.paths.bars({ size: [0.9, 20] }), fill: colour(COLOURS[nth % COLOURS.length]), points: { show: false } } : {}),
    }))],
  };
  place.replaceChildren();
  charts.set(id, { wanted, chart: new uPlot(settings, data, place) });
}

// As much of each time as tells them apart.
function times(ticks) {
  const span = ticks.length > 1 ? ticks[ticks.length - 1] - ticks[0] : 0;
  const [from, to] = span > 172800 ? [5, 10] : span > 43200 ? [5, 16] : span > 600 ? [11, 16] : [11, 19];
  return ticks.map((tick) => isTime(tick * 1e6) ? utc(tick * 1e6).slice(from, to) : "");
}
