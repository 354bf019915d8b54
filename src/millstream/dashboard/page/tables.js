// Elements that are kept and changed where they stand: what has the focus keeps it. Values of users reach the page as text only.
"use strict";

const by = (id) => document.getElementById(id);
const count = new Intl.NumberFormat("en");
const LAST_MOMENT = 8.64e18;  // microseconds, either way: further than that is an end of time

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function setText(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

function setHidden(place, hidden) {
  if (place.hidden !== hidden) place.hidden = hidden;
}

function setAttribute(place, name, value) {
  if (place.getAttribute(name) !== value) place.setAttribute(name, value);
}

// A child for each item, in their order: those that are there stay, by key.
function keep(parent, items, keyOf, make, update) {
  const wanted = new Map(items.map((item) => [keyOf(item), item]));
  for (const child of [...parent.children]) if (!wanted.has(child.dataset.key)) child.remove();
  const there = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let nth = 0;
  for (const [key, item] of wanted) {
    let child = there.get(key);
    if (!child) {
      child = make(item);
      child.dataset.key = key;
    }
    if (parent.children[nth] !== child) parent.insertBefore(child, parent.children[nth] || null);
    if (update) update(child, item);
    nth += 1;
  }
}

// A row is a name and its cells: texts, or what is right-aligned: {text}, or {number} with {go} and {label} for what it leads to.
function fillTable(table, rows) {
  keep(table.tBodies[0], rows, (row) => row.key, (row) => element("tr", {}, element("th", { scope: "row" }, row.name)), fillRow);
}

function fillRow(line, { cells }) {
  cells.forEach((cell, nth) => {
    const place = line.children[nth + 1] || line.appendChild(element("td"));
    if (typeof cell === "string") {
      setText(place, cell);
      return;
    }
    setAttribute(place, "class", "number");
    const text = cell.text ?? count.format(cell.number);
    let button = place.querySelector("button");
    if (!cell.go || !cell.number) {
      setText(place, text);
    } else {
      if (!button) place.replaceChildren(button = element("button", { type: "button", class: "count" }));
      button.onclick = cell.go;
      setText(button, text);
      setAttribute(button, "aria-label", `${text}: ${cell.label}`);
    }
  });
}

function setOptions(select, options, chosen) {
  const wanted = JSON.stringify(options);
  if (select.dataset.options === wanted) return false;
  const before = select.value;
  select.dataset.options = wanted;
  select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
  const values = options.map(([value]) => value);
  if (values.includes(before)) select.value = before;
  else if (values.includes(chosen)) select.value = chosen;
  return true;
}

function utc(microseconds) {
  return new Date(microseconds / 1000).toISOString().replace("T", " ").replace(/\.\d+Z$/, "");
}

function isTime(microseconds) {
  return Math.abs(microseconds) < LAST_MOMENT;
}

function moment(microseconds) {
  return isTime(microseconds) ? utc(microseconds) : microseconds < 0 ? "beginning of time" : "end of time";
}

function duration(microseconds) {
  const seconds = microseconds / 1e6, size = Math.abs(seconds);
  const [unit, one] = size < 120 ? ["s", 1] : size < 7200 ? ["min", 60] : size < 172800 ? ["h", 3600] : ["days", 86400];
  return `${count.format(Number((seconds / one).toFixed(size < 10 ? 1 : 0)))} ${unit}`;
}

function rateText(rate) {
  return `${rate >= 10 ? count.format(Math.round(rate)) : Number(rate.toFixed(1))}/s`;
}

// An answer of the server, or an error that says what is wrong.
async function ask(path, parameters, signal) {
  let answer;
  try {
    answer = await fetch(`${path}?${new URLSearchParams(parameters)}`, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the dashboard does not answer");
  }
  if (!answer.ok) throw new Error(`the dashboard answers ${answer.status}: ${(await answer.text()).trim()}`);
  const found = await answer.json();
  if (found.problem) throw new Error(found.problem);
  return found;
}
