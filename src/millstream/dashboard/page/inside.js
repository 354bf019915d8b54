// Look inside: the newest records of a stream, as they are, as a chart, or as the rows that changes leave.
"use strict";

const DEAD_LETTERS = "dead letters";
const FEW = 50, MANY = 2000, KEYS_SHOWN = 8, LONG = 8;  // lines of a value
let asking = null;

function openStream(stream, sender = "") {
  by("stream").value = stream;
  by("sender").value = sender;
  by("only").checked = false;
  by("shape").value = "records";
  look();
  by("records-title").scrollIntoView();
  by("records-title").focus({ preventScroll: true });
}

// One question is under way at a time: a new one takes the place of the last, and whoever only looks again waits for it.
async function look(again = false) {
  const stream = by("stream").value, shape = by("shape").value, letters = stream === DEAD_LETTERS;
  setHidden(by("sender-field"), !letters);
  setHidden(by("number-field"), shape !== "chart");
  if (!stream || (again && asking)) return;
  if (asking) asking.abort();
  const mine = asking = new AbortController();
  const question = { stream, last: shape === "records" ? FEW : MANY };
  if (by("only").checked) question.key = by("key").value;
  if (letters && by("sender").value) question.sender = by("sender").value;
  if (shape === "rows") question.rows = 1;
  setAttribute(by("told"), "aria-live", again ? "off" : "polite");
  try {
    const found = await ask("/api/records", question, mine.signal);
    setText(by("told"), howFar(found, question));
    setHidden(by("values"), shape !== "chart");
    setHidden(by("records"), shape === "chart");
    if (shape === "chart") showValues(found.records);
    else if (shape === "rows") showRows(found.records);
    else if (letters) showLetters(found.records);
    else showRecords(found.records);
  } catch (error) {
    if (error.name === "AbortError") return;
    setText(by("told"), error.message);
    setHidden(by("values"), true);
    table("", [], [], () => []);
  } finally {
    if (asking === mine) asking = null;
  }
}

function howFar(found, question) {
  const shown = found.records.length, what = shown === 1 ? "record" : "records";
  const whose = "key" in question ? ` of key ${JSON.stringify(question.key)}` : question.sender ? ` of ${question.sender}` : "";
  const back = found.since === null ? "all there are" : `back to epoch ${count.format(found.since)}`;
  const searched = whose ? `; ${count.format(found.searched)} were searched, ${back}` : "";
  const left = found.left_off ? `; ${count.format(found.left_off)} older ones are left off, for they are long` : "";
  const changes = question.rows ? "rows that the newest changes leave, the last changed first; " : "";
  return shown ? `${changes}${count.format(shown)} newest ${what}${whose}${searched}${left}` : `no records${whose}${searched}`;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

// From the text that was written: numbers that JavaScript would round are shown as they are.
function valueCell(text) {
  const shown = text.startsWith('"') ? String(parsed(text)) : text;
  return element("td", {}, longText(shown));
}

function longText(text) {
  return element("pre", text.split("\n").length > LONG ? { tabindex: "0" } : {}, text);
}

function table(kind, head, items, cells) {
  const place = by("records");
  if (place.dataset.kind !== kind) {
    place.dataset.kind = kind;
    place.tHead.replaceChildren(element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name))));
    place.tBodies[0].replaceChildren();
  }
  keep(place.tBodies[0], items, (item) => item.id, (item) => element("tr", {}, ...cells(item)));
}

function cell(text) {
  return element("td", {}, text);
}

function showRecords(records) {
  table("records", ["time", "key", "value"], records.reverse(), (record) => [cell(moment(record.timestamp)), cell(record.key), valueCell(record.text)]);
}

function showLetters(records) {
  table("letters", ["time", "from", "key", "why", "value"], records.reverse(), (record) => {
    const letter = parsed(record.text) || {};
    const from = element("td", {}, letter.computation || letter.stream || "", element("div", { class: "soft" }, letter.id || ""));
    return [cell(moment(record.timestamp)), from, cell(letter.key ?? ""), element("td", {}, longText(letter.reason || "")), element("td", {}, longText(letter.value || ""))];
  });
}

function showRows(records) {
  const rows = new Map();
  for (const record of records) {
    rows.delete(record.key);
    if (record.text !== null) rows.set(record.key, record);
  }
  table("rows", ["key", "row", "since"], [...rows.values()].reverse(), (record) =>
    [element("th", { scope: "row" }, record.key), valueCell(record.text), cell(moment(record.timestamp))]);
}

function numbers(value, path = "value") {
  if (typeof value === "number") return { [path]: value };
  if (value === null || typeof value !== "object" || Array.isArray(value)) return {};
  return Object.assign({}, ...Object.entries(value).map(([name, inner]) => numbers(inner, path === "value" ? name : `${path}.${name}`)));
}

function showValues(records) {
  const flat = records.map((record) => [record.timestamp / 1e6, record.key, numbers(parsed(record.text))]);
  const fields = [...new Set(flat.flatMap(([, , found]) => Object.keys(found)))], select = by("field");
  setOptions(select, fields.map((name) => [name, name]), fields.find((name) => /value|count|sum|mean|rate|score/.test(name)));
  if (!fields.length) {
    setText(by("told"), "no numbers are in these values");
    setHidden(by("values"), true);
    return;
  }
  const often = new Map();
  for (const [, key] of flat) often.set(key, (often.get(key) || 0) + 1);
  const keys = [...often.keys()].sort((a, b) => often.get(b) - often.get(a)).slice(0, KEYS_SHOWN);
  const points = flat.filter(([, key, found]) => keys.includes(key) && select.value in found).sort((a, b) => a[0] - b[0]);
  const xs = [...new Set(points.map(([at]) => at))], nth = new Map(xs.map((at, n) => [at, n]));
  const series = new Map(keys.map((key) => [key, new Array(xs.length).fill(null)]));
  for (const [at, key, found] of points) series.get(key)[nth.get(at)] = found[select.value];
  if (often.size > keys.length) setText(by("told"), `${by("told").textContent}; the ${keys.length} of ${count.format(often.size)} keys that have most are drawn`);
  drawChart("values", xs, Object.fromEntries(series), { sparse: true });
}

// What a computation keeps for a key: the server asks the run, or reads the folder, which takes some seconds.

function pretty(text) {
  return text.length > 120 ? JSON.stringify(parsed(text), null, 1) || text : text;
}

async function peek() {
  const computation = by("kept-of").value, key = by("kept-key").value;
  setText(by("kept-told"), "asking; without a run the folder is read by Spark, which takes some seconds");
  setHidden(by("kept-state"), true);
  setHidden(by("kept-timers"), true);
  try {
    const { kept } = await ask("/api/kept", { computation, key });
    const what = kept.found ? "as of" : "nothing is kept, as of";
    setText(by("kept-told"), `${computation}, key ${JSON.stringify(key)}: ${what} epoch ${count.format(kept.epoch)}${kept.problem ? `; ${kept.problem}` : ""}`);
    setText(by("kept-state"), kept.state ? pretty(kept.state) : "");
    setHidden(by("kept-state"), !kept.state);
    setHidden(by("kept-timers"), !kept.timers.length);
    const row = (timer) => element("tr", {}, cell(timer.tag), cell(moment(timer.at)), cell(timer.wall ? "wall" : "low watermark"), cell(timer.hold === null ? "" : moment(timer.hold)));
    by("kept-timers").tBodies[0].replaceChildren(...kept.timers.map(row));
  } catch (error) {
    setText(by("kept-told"), error.message);
  }
}
