// Keeps an open page up to date. The server sends the content of the page as events of the same URL; this script
// changes only the parts that differ, and computes rates from counters. Without it, pages show the values of their load.

const SPAN = 60; // Rates in a line: one each second.
const SHORTEST = 500; // Milliseconds; rates over less time are noise.
const RETRY = 5000; // Milliseconds before another attempt if the server has refused a stream.

const main = document.getElementById("main");
const state = document.getElementById("live-state");
const pause = document.getElementById("live-pause");

// Key of a counter → its last value, and the time of it in milliseconds, and rates, the oldest first.
const counters = new Map();

function record(key, value, at) {
  const counter = counters.get(key);
  if (!counter) {
    counters.set(key, { value, at, rates: [] });
    return;
  }
  if (at - counter.at < SHORTEST) return;
  // A smaller value is that of another process or of a new host with the same number.
  const rate = value < counter.value ? 0 : ((value - counter.value) * 1000) / (at - counter.at);
  counter.rates.push(rate);
  if (counter.rates.length > SPAN) counter.rates.shift();
  counter.value = value;
  counter.at = at;
}

function text(rate, unit) {
  if (unit === "bytes") {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let at = 0;
    for (; rate >= 999.95 && at < units.length - 1; at += 1) rate /= 1000;
    return `${rate.toFixed(at === 0 ? 0 : 1)} ${units[at]}`;
  }
  if (rate === 0) return "0";
  return rate < 10 ? rate.toFixed(1) : Math.round(rate).toLocaleString("en");
}

// Enters the counters below `root`, and writes their rates into it.
function writeRates(root, at) {
  for (const element of root.querySelectorAll("[data-rate]")) {
    const { rate: key, value, unit } = element.dataset;
    record(key, Number(value), at);
    const { rates } = counters.get(key);
    if (rates.length > 0) element.textContent = text(rates.at(-1), unit);
  }
  for (const line of root.querySelectorAll("[data-spark]")) {
    const rates = counters.get(line.dataset.spark)?.rates ?? [];
    const highest = Math.max(...rates, Number.MIN_VALUE);
    const point = (rate, index) => `${SPAN - rates.length + index},${(15 - (14 * rate) / highest).toFixed(1)}`;
    line.firstElementChild.setAttribute("points", rates.length > 1 ? rates.map(point).join(" ") : "");
  }
}

// Makes `shown` equal to `wanted`. Forms and what the reader has opened stay as they are.
function update(shown, wanted) {
  if (shown.nodeType !== Node.ELEMENT_NODE) {
    if (shown.nodeValue !== wanted.nodeValue) shown.nodeValue = wanted.nodeValue;
    return;
  }
  if (shown.nodeName === "FORM" || shown.isEqualNode(wanted)) return;
  for (const { name } of [...shown.attributes]) {
    if (!wanted.hasAttribute(name) && name !== "open") shown.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (shown.getAttribute(name) !== value) shown.setAttribute(name, value);
  }
  updateChildren(shown, wanted);
}

// Children with the same `data-key` are the same, wherever they are; other children are the same at the same place.
function updateChildren(shown, wanted) {
  const keyOf = (node) => node?.dataset?.key;
  const wantedKeys = new Set([...wanted.children].map(keyOf));
  const keyed = new Map();
  for (const child of [...shown.children]) {
    const key = keyOf(child);
    if (key === undefined) continue;
    if (wantedKeys.has(key)) keyed.set(key, child);
    else child.remove();
  }
  let place = shown.firstChild;
  for (const node of [...wanted.childNodes]) {
    const key = keyOf(node);
    const same = key !== undefined ? keyed.get(key) : keyOf(place) === undefined ? place : null;
    if (!same || same.nodeName !== node.nodeName) {
      shown.insertBefore(node, place);
      continue;
    }
    if (same === place) place = place.nextSibling;
    else shown.insertBefore(same, place);
    update(same, node);
  }
  while (place) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
}

function show({ at, html }) {
  if (html === undefined) {
    writeRates(main, at);
    return;
  }
  const template = document.createElement("template");
  template.innerHTML = html;
  writeRates(template.content, at);
  updateChildren(main, template.content);
}

let events = null;
let isPaused = false;
let retry = 0;

function say(words, kind) {
  if (state.textContent !== words) state.textContent = words;
  state.className = kind;
}

function open() {
  close();
  if (isPaused || document.hidden) return;
  events = new EventSource(location.pathname + location.search);
  events.addEventListener("page", (event) => {
    show(JSON.parse(event.data));
    say("Live", "good");
  });
  events.addEventListener("error", () => {
    say("Connection lost, trying again", "bad");
    if (events?.readyState === EventSource.CLOSED) retry = setTimeout(open, RETRY);
  });
}

function close() {
  clearTimeout(retry);
  events?.close();
  events = null;
}

if (main.hasAttribute("data-live")) {
  document.getElementById("live").hidden = false;
  say("Connecting", "");
  writeRates(main, Number(main.dataset.at));
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Resume updates" : "Pause updates";
    if (isPaused) say("Paused", "");
    open();
  });
  // A page that is not looked at costs the node nothing.
  document.addEventListener("visibilitychange", open);
  addEventListener("pageshow", (event) => event.persisted && open());
  open();
}
