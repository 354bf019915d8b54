// The page of a run: is told of it every second, and asks for its history.
"use strict";

const SERIES = 8, LOOK_EVERY = 2000, TRY_AGAIN = 3000;  // milliseconds
let state = null, past = null, asked = null;

const span = () => Number(document.querySelector("input[name=range]:checked").value) * 1e6;
const columns = () => [past.at, past.ran, past.wrote, past.late, past.dropped, past.dead, ...Object.values(past.records), ...Object.values(past.low_watermarks)];

function say(problem) {
  setText(by("problem"), problem);
  setHidden(by("problem"), !problem);
}

// History: columns that grow with each sample. Of each step of time the last sample stays.

async function loadPast() {
  if (asked) asked.abort();
  const mine = asked = new AbortController();
  try {
    past = await ask("/api/history", { seconds: span() / 1e6, of: by("of").value }, mine.signal);
    setText(by("time-told"), past.at.length ? "" : "no samples yet");
  } catch (error) {
    if (error.name === "AbortError") return;
    past = null;
    setText(by("time-told"), `what was before this page was opened cannot be shown: ${error.message}`);
  } finally {
    if (asked === mine) asked = null;
  }
  if (state && state.status) showTime();
}

function add(sample) {
  const none = { id: state.id, step: span() / 450, at: [], ran: [], wrote: [], late: [], dropped: [], dead: [], records: {}, low_watermarks: {} };
  past = past || none;
  const length = past.at.length;
  if (length && sample.at <= past.at[length - 1]) return;
  if (!length) setText(by("time-told"), "");
  if (length > 1 && Math.floor(past.at[length - 1] / past.step) === Math.floor(sample.at / past.step)) columns().forEach((column) => column.pop());
  for (const [series, found] of [[past.records, sample.records], [past.low_watermarks, sample.low_watermarks]]) {
    for (const name of Object.keys(found || {})) {
      if (!(name in series) && Object.keys(series).length < SERIES) series[name] = new Array(past.at.length).fill(null);
    }
    for (const name of Object.keys(series)) series[name].push((found || {})[name] ?? null);
  }
  past.at.push(sample.at);
  past.ran.push(sample.ran || 0);
  past.wrote.push(sample.wrote || 0);
  const of = by("of").value;
  for (const what of ["late", "dropped", "dead"]) {
    const found = sample[what] || {};
    past[what].push(of ? found[of] || 0 : Object.values(found).reduce((sum, each) => sum + each, 0));
  }
  while (past.at[0] <= sample.at - span()) columns().forEach((column) => column.shift());
}

// Of counts, what came a second between two samples; nothing where no run was on.
function perSecond(counts) {
  return counts.map((now, nth) => {
    if (nth === 0 || now === null) return null;
    const seconds = (past.at[nth] - past.at[nth - 1]) / 1e6;
    return seconds > 3 * Math.max(60, past.step / 1e6) ? null : Math.max(0, now - (counts[nth - 1] || 0)) / seconds;
  });
}

function some(shown, all, which, what) {
  return all > shown ? `: the ${shown} of ${count.format(all)} ${what} ${which}` : "";
}

function showTime() {
  if (!past) return;
  const { status } = state, xs = past.at.map((at) => at / 1e6), each = (series, of) => Object.fromEntries(Object.entries(series).map(([name, column]) => [name, of(column)]));
  const lows = each(past.low_watermarks, (column) => column.map((at) => at === null || !isTime(at) ? null : at / 1e6));
  setText(by("lows-title"), `Low watermarks against the wall clock${some(SERIES, Object.keys(status.computations).length, "furthest behind", "computations")}`);
  drawChart("low-watermarks", xs, lows, { times: true, values: (u, ticks) => times(ticks) });
  setText(by("rates-title"), `Records a second${some(SERIES, Object.keys(status.streams).length, "with most of them", "streams")}`);
  drawChart("rates", xs, each(past.records, perSecond));
  const ran = perSecond(past.ran), wrote = perSecond(past.wrote);
  const both = ran.map((share, nth) => share === null ? null : share + wrote[nth]);
  drawChart("epochs", xs, { "in the lanes": both, "in commits": wrote }, { bars: true, range: [0, 1], values: (u, ticks) => ticks.map((tick) => `${Math.round(tick * 100)} %`) });
  drawChart("lost", xs, { late: perSecond(past.late), dropped: perSecond(past.dropped), dead: perSecond(past.dead) }, { range: (u, low, high) => [0, Math.max(1, high)] });
}

function showSummary() {
  const { status } = state;
  const injected = Object.values(status.injectors).reduce((sum, each) => sum + each.injected, 0);
  if (document.title !== `${status.topology} · Millstream`) document.title = `${status.topology} · Millstream`;
  setText(by("topology"), status.topology);
  setText(by("summary"), `${status.running ? "running" : "no run is on"} · epoch ${count.format(status.epoch)} · ${count.format(injected)} records in · ${utc(status.now)}`);
  setHidden(by("troubles"), !status.troubles.length);
  keep(by("troubles"), [...new Set(status.troubles)], (trouble) => trouble, (trouble) => element("li", {}, trouble));
}

function lagOf(each) {
  return each.timeless || each.lag === null ? "" : duration(each.lag);
}

function behindText(behind) {
  return behind ? `${count.format(behind)} ${behind === 1 ? "epoch" : "epochs"} behind` : "has everything";
}

function showGraph() {
  const { status, picture, rates } = state, lines = {};
  for (const [name, each] of Object.entries(status.injectors)) {
    const left = Object.values(each.lag || {}).reduce((sum, part) => sum + part, 0);
    lines[`injector ${name}`] = [
      `${count.format(each.injected)} in, ${rateText(rates[name] || 0)}`,
      each.finished ? "ended" : each.idle ? "idle" : each.timeless ? "timeless" : moment(each.low_watermark),
      [left ? `${count.format(left)} unread` : "", each.dead ? `${count.format(each.dead)} dead` : ""].filter(Boolean).join(", "),
    ];
  }
  for (const [name, each] of Object.entries(status.computations)) {
    lines[`computation ${name}`] = [
      `${count.format(each.tally.received)} received, ${count.format(each.keys)} keys`,
      `${count.format(each.timers)} timers${each.waiting ? `, ${count.format(each.waiting)} waiting` : ""}`,
      each.timeless ? "timeless" : moment(each.low_watermark) + (lagOf(each) ? `, ${lagOf(each)}` : ""),
    ];
  }
  for (const [name, behind] of Object.entries(status.deliveries)) lines[`delivery ${name}`] = [behindText(behind)];
  lines[`stream ${DEAD_LETTERS}`] = ["what could not be processed,", "by whoever it was"];
  const hold = status.running ? state.held_back[state.furthest] : undefined;
  const { boxes, streams } = drawGraph(by("graph"), picture, openStream);
  for (const [id, box] of boxes) box.update(lines[id] || [], Boolean(hold) && hold.by === id);
  for (const [name, stream] of streams) stream.update(rates[name] || 0, (status.streams[name] || { records: 0 }).records);
  setText(by("held"), hold ? `${state.furthest} is at ${hold.words}.` : "");
}

function showCounts() {
  const { status } = state, letters = DEAD_LETTERS in status.streams;
  const dead = (number, id) => ({ number, ...(letters ? { go: () => openStream(DEAD_LETTERS, id), label: "show these dead letters" } : {}) });
  const when = (number, name) => ({ number, go: () => showLost(name), label: "show when they came" });
  fillTable(by("computations"), Object.entries(status.computations).map(([name, each]) => ({ key: name, name, cells: [
    each.timeless ? "timeless" : moment(each.low_watermark), { text: lagOf(each) }, { number: each.tally.received }, when(each.tally.late, name), when(each.tally.dropped, name),
    dead(each.tally.dead, `computation ${name}`), { number: each.keys }, { number: each.timers }, { number: each.waiting },
  ] })));
  const injectors = Object.entries(status.injectors).map(([name, each]) => ({ key: `injector ${name}`, name, cells: [
    "injector", { number: each.injected }, { number: each.waiting }, dead(each.dead, `injector ${name}`),
    each.finished ? "ended" : each.idle ? "idle" : each.timeless ? "timeless" : moment(each.low_watermark),
  ] }));
  const deliveries = Object.entries(status.deliveries).map(([name, behind]) => ({ key: `delivery ${name}`, name, cells: ["delivery", "", "", "", behindText(behind)] }));
  fillTable(by("ends"), [...injectors, ...deliveries]);
  const computations = Object.keys(status.computations), streams = Object.keys(status.streams);
  setOptions(by("kept-of"), computations.map((name) => [name, name]), computations[0]);
  setOptions(by("of"), [["", "all"], ...computations.map((name) => [name, name])], "");
  setOptions(by("sender"), [["", "all"], ...computations.map((name) => [`computation ${name}`, name]), ...Object.keys(status.injectors).map((name) => [`injector ${name}`, `injector ${name}`])], "");
  if (setOptions(by("stream"), streams.map((name) => [name, name]), streams.filter((name) => name !== DEAD_LETTERS).pop())) look();
}

function showLost(name) {
  by("of").value = name;
  loadPast();
  by("lost").scrollIntoView({ block: "center" });
  by("of").focus({ preventScroll: true });
}

function show(seen) {
  const another = !state || state.id !== seen.id;
  state = seen;
  say(seen.problem);
  setHidden(document.querySelector("main"), !seen.status);
  if (!seen.status) return;
  if (another) {
    past = null;
    loadPast();
  }
  if (seen.sample && !asked) add(seen.sample);
  showSummary();
  showGraph();
  showTime();
  showCounts();
  document.body.dataset.epoch = seen.status.epoch;
}

function listen() {
  const events = new EventSource("/api/events");
  events.onmessage = (event) => show(JSON.parse(event.data));
  events.onerror = () => {
    say("the dashboard does not answer; it is asked again");
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, TRY_AGAIN);
  };
}

addEventListener("error", (event) => say(`a fault of this page: ${event.message}`));
addEventListener("unhandledrejection", (event) => say(`a fault of this page: ${event.reason}`));
by("look").addEventListener("submit", (event) => { event.preventDefault(); look(); });
by("key").addEventListener("input", () => { by("only").checked = true; });
for (const id of ["stream", "sender", "only", "key", "shape", "field"]) by(id).addEventListener("change", () => look());
by("peek").addEventListener("submit", (event) => { event.preventDefault(); peek(); });
by("range").addEventListener("change", loadPast);
by("of").addEventListener("change", loadPast);
setInterval(() => { if (by("follow").checked && state && state.status && state.status.running && !document.hidden) look(true); }, LOOK_EVERY);
listen();
