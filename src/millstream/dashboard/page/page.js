// The page of a run: asks for its history once, then is told of it every second.
"use strict";

const KEPT = 4000, SECONDS_SHOWN = 900, AT_MOST = 8;
const samples = [];
let state = null, following = 0;
const by = (id) => document.getElementById(id);
const count = new Intl.NumberFormat("en");

function isTime(microseconds) {
  return Math.abs(microseconds) < 8.64e18 / 1000;  // not at an end of time
}

function moment(microseconds) {
  return isTime(microseconds) ? utc(microseconds) : microseconds < 0 ? "beginning of time" : "end of time";
}

function add(sample) {
  if (!sample || (samples.length && sample.at <= samples[samples.length - 1].at)) return;
  samples.push(sample);
  if (samples.length > KEPT) samples.splice(0, samples.length - KEPT);
}

function shown() {
  const last = samples.length ? samples[samples.length - 1].at : 0;
  const recent = samples.filter((each) => each.at > last - SECONDS_SHOWN * 1e6);
  return recent.length > 5 ? recent : samples;
}

function rates() {
  const from = samples[samples.length - 2], to = samples[samples.length - 1], found = {};
  if (!from || !state.status.running || state.status.now - to.at > 5e6) return found;
  for (const [name, records] of Object.entries(to.records || {})) {
    const rate = Math.round((records - ((from.records || {})[name] || 0)) / ((to.at - from.at) / 1e6));
    if (rate > 0) found[name] = rate;
  }
  return found;
}

function showSummary() {
  const { status } = state;
  document.title = `${status.topology} · Millstream`;
  by("topology").textContent = status.topology;
  const injected = Object.values(status.injectors).reduce((sum, each) => sum + each.injected, 0);
  by("summary").textContent = `${status.running ? "running" : "no run is on"} · epoch ${count.format(status.epoch)} · ${count.format(injected)} records in · ${utc(status.now)}`;
  by("troubles").replaceChildren(...status.troubles.map((trouble) => element("li", {}, trouble)));
}

function showGraph() {
  const { status, picture, held_back: held } = state, flows = rates(), lines = {};
  const least = Math.min(...Object.values(status.computations).map((each) => each.low_watermark));
  for (const [name, each] of Object.entries(status.injectors)) {
    const left = Object.values(each.lag || {}).reduce((sum, some) => sum + some, 0);
    lines[`injector ${name}`] = [
      `${count.format(each.injected)} in, ${count.format(flows[name] || 0)}/s`,
      each.finished ? "ended" : each.idle ? "idle" : left ? `${count.format(left)} unread` : each.timeless ? "timeless" : moment(each.low_watermark),
    ];
  }
  for (const [name, each] of Object.entries(status.computations)) {
    lines[`computation ${name}`] = [
      `${count.format(each.tally.received)} received, ${count.format(each.keys)} keys`,
      `${count.format(each.timers)} timers${each.waiting ? `, ${count.format(each.waiting)} waiting` : ""}`,
      each.timeless ? "timeless" : moment(each.low_watermark),
    ];
  }
  for (const [name, behind] of Object.entries(status.deliveries)) lines[`delivery ${name}`] = [behind ? `${count.format(behind)} epochs behind` : "has everything"];
  const holders = new Set(), said = [];
  for (const [name, why] of Object.entries(held)) {
    const each = status.computations[name];
    if (each && each.low_watermark === least && why && status.running) {
      said.push(`${name} is at ${why}.`);
      for (const node of picture.nodes) if (why.includes(`${node.kind} '${node.name}'`) || why.includes(`because '${node.name}'`)) holders.add(node.id);
    }
  }
  drawGraph(by("graph"), picture, lines, flows, holders);
  by("held").textContent = said.slice(0, 1).join(" ");
}

function showTime() {
  const some = shown(), xs = some.map((each) => each.at / 1e6);
  const lows = {}, records = {};
  for (const name of Object.keys(state.status.computations).slice(0, AT_MOST)) {
    lows[name] = some.map((each) => { const at = (each.low_watermarks || {})[name]; return at === undefined || !isTime(at) ? null : at / 1e6; });
  }
  drawChart("low-watermarks", xs, lows, { times: true, values: (u, ticks) => times(ticks) });
  const change = (each, nth, of) => nth === 0 ? null : Math.max(0, of(each) - of(some[nth - 1])) / ((each.at - some[nth - 1].at) / 1e6);
  const busiest = Object.entries(state.status.streams).sort((a, b) => b[1].records - a[1].records).slice(0, AT_MOST).map(([name]) => name);
  for (const name of busiest) records[name] = some.map((each, nth) => change(each, nth, (s) => (s.records || {})[name] || 0));
  drawChart("rates", xs, records);
  const wrote = some.map((each, nth) => change(each, nth, (s) => s.wrote || 0));
  const both = some.map((each, nth) => nth === 0 ? null : change(each, nth, (s) => s.ran || 0) + wrote[nth]);
  drawChart("epochs", xs, { "in the lanes": both, "in commits": wrote }, { bars: true, range: [0, 1], values: (u, ticks) => ticks.map((tick) => `${Math.round(tick * 100)} %`) });
}

function cell(text, number = false) {
  return element("td", number ? { class: "number" } : {}, text);
}

function countCell(number, stream) {
  if (!number || !stream) return cell(count.format(number), true);
  const button = element("button", { class: "count", type: "button" }, count.format(number));
  button.addEventListener("click", () => { by("stream").value = stream; by("key").value = ""; look(); by("records-title").scrollIntoView(); });
  return element("td", { class: "number" }, button);
}

function showTables() {
  const { status } = state, dead = "dead letters" in status.streams ? "dead letters" : null;
  by("computations").tBodies[0].replaceChildren(...Object.entries(status.computations).map(([name, each]) => element("tr", {},
    element("th", { scope: "row" }, name), cell(each.timeless ? "timeless" : moment(each.low_watermark)), cell(count.format(each.tally.received), true),
    cell(count.format(each.tally.late), true), cell(count.format(each.tally.dropped), true), countCell(each.tally.dead, dead),
    cell(count.format(each.keys), true), cell(count.format(each.timers), true), cell(count.format(each.waiting), true))));
  const ends = Object.entries(status.injectors).map(([name, each]) => element("tr", {},
    element("th", { scope: "row" }, name), cell("injector"), cell(count.format(each.injected), true), cell(count.format(each.waiting), true),
    countCell(each.dead, dead), cell(each.finished ? "ended" : each.idle ? "idle" : moment(each.low_watermark))));
  const deliveries = Object.entries(status.deliveries).map(([name, behind]) => element("tr", {},
    element("th", { scope: "row" }, name), cell("delivery"), cell(""), cell(""), cell(""), cell(behind ? `${count.format(behind)} epochs behind` : "has everything")));
  by("ends").tBodies[0].replaceChildren(...ends, ...deliveries);
  const names = Object.keys(status.streams), select = by("stream");
  if (JSON.stringify(names) !== JSON.stringify([...select.options].map((option) => option.value))) {
    const chosen = select.value || names[names.length - 1];
    select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    if (names.includes(chosen)) select.value = chosen;
    look();
  }
}

// Look inside.

async function look() {
  const stream = by("stream").value, key = by("key").value, how = by("shape").value, asked = ++following;
  if (!stream) return;
  const last = how === "records" ? 50 : 2000;
  const answer = await fetch(`/api/records?${new URLSearchParams({ stream, last, ...(key ? { key } : {}) })}`);
  if (asked !== following) return;
  const records = await answer.json();
  if (records.problem) {
    by("told").textContent = records.problem;
    table([], []);
    return;
  }
  by("told").textContent = `${count.format(records.length)} newest records${key ? ` of key ${key}` : ""}`;
  by("values").hidden = how !== "chart";
  by("records").hidden = how === "chart";
  document.querySelector("label.field").hidden = how !== "chart";
  if (how === "chart") showValues(records);
  else if (how === "rows") showRows(records);
  else showRecords(records);
}

function timeOf(record) {
  return typeof record.timestamp === "number" ? record.timestamp : Date.parse(record.timestamp) * 1000;
}

function text(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}

function table(head, rows) {
  by("records").tHead.replaceChildren(element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name))));
  by("records").tBodies[0].replaceChildren(...rows);
}

function showRecords(records) {
  table(["time", "key", "value"], records.reverse().map((record) => element("tr", {},
    cell(moment(timeOf(record))), cell(record.key), element("td", {}, element("pre", {}, text(record.value))))));
}

function showRows(records) {
  const rows = new Map();
  for (const record of records) {
    rows.delete(record.key);
    const change = record.value;
    if (change && typeof change === "object" && "after" in change) { if (change.after !== null) rows.set(record.key, [record, change.after]); }
    else rows.set(record.key, [record, change]);
  }
  by("told").textContent = `rows that the newest ${count.format(records.length)} changes leave, the last changed first`;
  table(["key", "row", "since"], [...rows].reverse().map(([key, [record, row]]) => element("tr", {},
    element("th", { scope: "row" }, key), element("td", {}, element("pre", {}, text(row))), cell(moment(timeOf(record))))));
}

function numbers(value, path = "value") {
  if (typeof value === "number") return { [path]: value };
  if (value === null || typeof value !== "object" || Array.isArray(value)) return {};
  return Object.assign({}, ...Object.entries(value).map(([name, inner]) => numbers(inner, path === "value" ? name : `${path}.${name}`)));
}

function showValues(records) {
  const flat = records.map((record) => [timeOf(record) / 1e6, record.key, numbers(record.value)]);
  const fields = [...new Set(flat.flatMap(([, , found]) => Object.keys(found)))], select = by("field");
  if (JSON.stringify(fields) !== JSON.stringify([...select.options].map((option) => option.value))) {
    const likely = fields.find((name) => /value|count|sum|mean|rate|score/.test(name)) || fields[0];
    select.replaceChildren(...fields.map((name) => element("option", { value: name }, name)));
    if (likely) select.value = likely;
  }
  if (!fields.length) { by("told").textContent = "no numbers are in these values"; return; }
  const often = {};
  for (const [, key] of flat) often[key] = (often[key] || 0) + 1;
  const keys = Object.keys(often).sort((a, b) => often[b] - often[a]).slice(0, AT_MOST);
  const points = flat.filter(([, key, found]) => keys.includes(key) && select.value in found).sort((a, b) => a[0] - b[0]);
  const xs = [...new Set(points.map(([at]) => at))], nth = new Map(xs.map((at, n) => [at, n]));
  const series = Object.fromEntries(keys.map((key) => [key, new Array(xs.length).fill(null)]));
  for (const [at, key, found] of points) series[key][nth.get(at)] = found[select.value];
  drawChart("values", xs, series);
}

function show(seen) {
  state = seen;
  by("problem").hidden = !seen.problem;
  by("problem").textContent = seen.problem;
  document.querySelector("main").hidden = !seen.status;
  if (!seen.status) return;
  add(seen.sample);
  showSummary();
  showGraph();
  showTime();
  showTables();
  document.body.dataset.epoch = seen.status.epoch;
}

async function begin() {
  const history = await (await fetch("/api/history")).json();
  history.forEach(add);
  const events = new EventSource("/api/events");
  events.onmessage = (event) => show(JSON.parse(event.data));
  events.onerror = () => { by("summary").textContent = "the dashboard does not answer; it is tried again"; };
  by("look").addEventListener("submit", (event) => event.preventDefault());
  for (const id of ["stream", "shape", "field"]) by(id).addEventListener("change", look);
  by("key").addEventListener("change", look);
  document.querySelector("label.field").hidden = true;
  setInterval(() => { if (by("follow").checked && state && state.status && state.status.running && !document.hidden) look(); }, 2000);
}

begin();
