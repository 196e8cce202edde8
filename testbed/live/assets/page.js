// Draws what the server tells: the messages of testbed/live/messages.py, as server-sent events. Loads nothing from elsewhere.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const MOST_ITERATIONS = 400; // as testbed/live/state.py keeps
const MOST_CHANGES = 50;
const MOST_PAST = 200;
const LANE_GAP = 4.5; // from the middle of a link to each of its directions
const DOT_GAP = 26;
const DOT_STEP = 1;
const DASH = "\u2013";
const PARTS = [
  ["compute", "compute", "--blue"], ["data", "data", "--grey"], ["waiting", "waiting for slower workers", "--amber"],
  ["exposed_communication", "exposed communication", "--red"], ["optimizer", "optimizer", "--purple"], ["other", "other", "--grey"],
];
const $ = id => document.getElementById(id);

function make(parent, name, attributes = {}, text = "") {
  const made = parent.namespaceURI === SVG ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return parent.appendChild(made);
}

// What does not change is not touched: a browser draws again whatever is.
function put(element, text) { if (element.textContent !== text) element.textContent = text; }
function show(element, shown) { if (element.hidden === shown) element.hidden = !shown; }

// Numbers as people read them, as testbed/record/number_text.py writes them.
const digits = (value, count = 3) => String(Number(value.toPrecision(count)));
const scaled = (value, units, count) => {
  const [least, unit] = units.find(([least]) => Math.abs(value) >= least) || units[units.length - 1];
  return `${digits(value / least, count)} ${unit}`;
};
const timeText = s => s === 0 ? "0 s" : s >= 600 ? `${digits(s / 60)} min` : scaled(s, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]], 3);
const rateText = bps => scaled(bps, [[1e12, "Tbit/s"], [1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"], [1, "bit/s"]], 4);
const sizeText = bytes => scaled(bytes, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]], 3);
const percentText = share => `${(100 * share).toFixed(1)} %`;
const clockText = s => `${s.toFixed(1)} s`;

// ------------------------------------------------------------------------------------------------ what is known

let run = null; // of the run that goes on, or was the last one
let past = [];
let playback = null;
let over = false;

function fresh(opening) {
  return {
    opening, lanes: [], links: null, phase: null, iterations: [], stride: 1, count: 0, last: null, begun: null,
    changes: [], against: {}, machine: null, shaping: null, ending: null, fresh: true,
  };
}

const apply = {
  opening(message) {
    run = fresh(message);
    draw(message);
  },
  phase(message) { run.phase = message; run.begun = null; },
  links(message) { run.links = message; run.lanes.forEach((lane, index) => colour(lane, index, message)); },
  iteration(message) {
    if (!run.begun || run.begun.phase !== message.phase) run.begun = message;
    if (run.count % run.stride === 0) run.iterations.push(message);
    run.count += 1;
    run.last = message;
    if (run.iterations.length > MOST_ITERATIONS) {
      run.iterations = run.iterations.filter((_, index) => index % 2 === 0);
      run.stride *= 2;
    }
  },
  change(message) {
    run.changes.unshift(message);
    run.changes.length = Math.min(run.changes.length, MOST_CHANGES);
    if (message.setting === "carrier") {
      const lane = run.lanes.find(each => each.direction.sender === message.sender && each.direction.receiver === message.receiver);
      if (lane) setDown(lane, message.after === "down");
    }
  },
  shaping(message) { run.shaping = message; run.against.shaping = message.against; },
  machine(message) { run.machine = message; run.against.machine = message.against; },
  interference(message) { run.against.interference = message.against; },
  ending(message) { run.ending = message; },
  past(message) { past.push(message); if (past.length > MOST_PAST) past.shift(); },
  playback(message) { playback = message; },
  over() { over = true; },
};

function hear(messages) {
  for (const message of messages) {
    if (message.kind in apply && (run || ["opening", "past", "playback", "over"].includes(message.kind))) apply[message.kind](message);
  }
  wanted = true;
}

// ------------------------------------------------------------------------------------------------ the drawing

function draw(opening) {
  if (opening.schema_version !== 2) { put($("connection"), "This page is older than the run: load it again."); return; }
  const svg = $("drawing"), nodes = new Map(opening.nodes.map(node => [node.name, node]));
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${opening.width} ${opening.height}`);
  const switches = opening.nodes.filter(node => node.role === "switch").length;
  make(svg, "title", {id: "drawing-title"}, `${opening.num_workers} workers, ${switches} switch${switches === 1 ? "" : "es"}; the table below has the numbers`);
  const stage = $("stage");
  stage.style.minWidth = `${Math.min(opening.width * 0.6, 1600)}px`;
  stage.style.maxWidth = `${Math.max(opening.width * 1.25, 300)}px`;
  const layers = ["reach", "lanes", "lost"].map(() => make(svg, "g"));
  run.lanes = opening.directions.map((direction, index) => lane(direction, index, nodes, layers));
  const top = make(svg, "g");
  for (const node of opening.nodes) drawNode(top, node);
  svg.append(layers[2]);
  $("rows").replaceChildren();
  run.lanes.forEach((each, index) => each.row = row(each, index));
  for (const each of run.lanes) setDown(each, each.direction.down);
  resize();
}

function drawNode(group, node) {
  const at = {class: `node ${node.role}`};
  if (node.role === "switch" || node.role === "host") make(group, "rect", {...at, x: node.x - 17, y: node.y - 11, width: 34, height: 22, rx: node.role === "switch" ? 4 : 11});
  else if (node.role === "aggregator") make(group, "rect", {...at, x: node.x - 11, y: node.y - 11, width: 22, height: 22, rx: 2, transform: `rotate(45 ${node.x} ${node.y})`});
  else if (node.role === "storage") make(group, "rect", {...at, x: node.x - 13, y: node.y - 13, width: 26, height: 26, rx: 3});
  else make(group, "circle", {...at, cx: node.x, cy: node.y, r: 13.5});
  make(group, "text", {class: "name", x: node.x, y: node.y}, node.name);
}

// A direction keeps to the right of its link's middle, so that both are seen.
function lane(direction, index, nodes, [reach, lanes, lost]) {
  const from = nodes.get(direction.sender), to = nodes.get(direction.receiver);
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  const left = {x: (to.y - from.y) / length, y: -(to.x - from.x) / length};
  const gap = -LANE_GAP;
  const middle = {x: (from.x + to.x) / 2 + left.x * (direction.bend + gap), y: (from.y + to.y) / 2 + left.y * (direction.bend + gap)};
  const end = (node, radius) => {
    const start = {x: node.x + left.x * gap, y: node.y + left.y * gap}, far = Math.hypot(middle.x - start.x, middle.y - start.y) || 1;
    return {x: start.x + (middle.x - start.x) / far * radius, y: start.y + (middle.y - start.y) / far * radius};
  };
  const radius = node => Math.min(length * 0.3, node.role === "switch" || node.role === "host" ? 19 : 18);
  const made = {direction, index, from: end(from, radius(from)), middle, to: end(to, radius(to)), bin: -1, used: null, dropped: 0, down: false};
  if (!direction.bend) made.middle = {x: (made.from.x + made.to.x) / 2, y: (made.from.y + made.to.y) / 2};
  made.length = Math.hypot(made.to.x - made.from.x, made.to.y - made.from.y) + Math.abs(direction.bend) / 2;
  // Where dots pass, so that nothing is computed or allocated for each of them in each frame.
  const steps = Math.ceil(made.length / DOT_STEP) + 1;
  made.xs = new Float32Array(steps);
  made.ys = new Float32Array(steps);
  for (let number = 0; number < steps; number += 1) {
    const point = along(made, Math.min(1, number * DOT_STEP / made.length));
    made.xs[number] = point.x;
    made.ys[number] = point.y;
  }
  const d = `M${xy(made.from)}Q${xy(made.middle)} ${xy(made.to)}`;
  made.reach = make(reach, "path", {class: "reach", d});
  made.line = make(lanes, "path", {class: "lane", d});
  const tip = along(made, 0.66), before = along(made, 0.6), turn = Math.atan2(tip.y - before.y, tip.x - before.x) * 180 / Math.PI;
  made.head = make(lanes, "path", {class: "head-of", d: "M-5 -5.5L6 0L-5 5.5Z", transform: `translate(${xy(tip)}) rotate(${turn.toFixed(1)})`});
  const cross = along(made, 0.5);
  made.cross = make(lanes, "path", {class: "cross", d: "M-5 -5L5 5M5 -5L-5 5", transform: `translate(${xy(cross)})`});
  const at = along(made, 0.2);
  made.lost = make(lost, "g", {class: "lost", transform: `translate(${xy(at)})`});
  made.lostBox = make(made.lost, "rect", {x: -9, y: -7, width: 18, height: 14, rx: 4});
  made.lostText = make(made.lost, "text");
  made.reach.addEventListener("pointerenter", () => { hovered = made; });
  made.reach.addEventListener("pointermove", moveNote);
  made.reach.addEventListener("pointerleave", () => { hovered = null; show($("note"), false); });
  return made;
}

const xy = point => `${point.x.toFixed(1)} ${point.y.toFixed(1)}`;

function along(lane, t) {
  const u = 1 - t, {from, middle, to} = lane;
  return {x: u * u * from.x + 2 * u * t * middle.x + t * t * to.x, y: u * u * from.y + 2 * u * t * middle.y + t * t * to.y};
}

function colour(lane, index, links) {
  lane.used = links.used_permille[index];
  lane.dropped = links.dropped[index];
  const bin = lane.used === null ? 0 : Math.max(0, Math.min(10, Math.ceil(lane.used / 100 - 0.05)));
  if (bin !== lane.bin) {
    lane.bin = bin;
    paint(lane);
  }
  if (lane.dropped) {
    const text = lane.dropped < 1000 ? String(lane.dropped) : `${digits(lane.dropped / 1000, 2)}k`;
    if (lane.lostText.textContent !== text) {
      lane.lostText.textContent = text;
      lane.lost.setAttribute("class", "lost some");
      const width = 8 + 6 * text.length;
      lane.lostBox.setAttribute("x", -width / 2);
      lane.lostBox.setAttribute("width", width);
    }
  }
}

function paint(lane) {
  const state = lane.down ? "down" : `u${Math.max(0, lane.bin)}`;
  lane.line.setAttribute("class", `lane ${state}`);
  lane.head.setAttribute("class", `head-of ${state}`);
}

function setDown(lane, down) {
  lane.down = down;
  paint(lane);
  lane.cross.setAttribute("class", down ? "cross down" : "cross");
}

// ------------------------------------------------------------------------------------------------ what moves

const quiet = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");
let moving = !quiet.matches;
let canvas = $("dots"), paper = canvas.getContext("2d"), scale = 1, dots = ["#fff", "#fff"], frame = 0, frameAt = 0, blank = true;

function resize() {
  const box = $("stage").getBoundingClientRect(), ratio = Math.min(2, devicePixelRatio || 1);
  canvas.width = Math.round(box.width * ratio);
  canvas.height = Math.round(box.height * ratio);
  scale = run ? canvas.width / run.opening.width : 1;
  const style = getComputedStyle(document.documentElement);
  dots = ["--moving-idle", "--moving"].map(name => style.getPropertyValue(name).trim());
}

// Dots go along each direction, faster where more is sent. They are on a canvas: hundreds of elements that move would be
// laid out anew sixty times a second.
function step(now) {
  frame = 0;
  const passed = Math.min(0.1, (now - frameAt) / 1000);
  frameAt = now;
  const busy = moving && run && run.links && !run.ending && !over && !(playback && playback.paused);
  if (!blank) { paper.setTransform(1, 0, 0, 1, 0, 0); paper.clearRect(0, 0, canvas.width, canvas.height); blank = true; }
  if (busy) {
    paper.setTransform(scale, 0, 0, scale, 0, 0);
    dots.forEach((colour, number) => {
      paper.fillStyle = colour;
      for (const lane of run.lanes) if (lane.used && !lane.down && (lane.bin > 4 ? 1 : 0) === number) dotsOf(lane, passed);
    });
  }
  goOn();
}

function dotsOf(lane, passed) {
  const used = Math.min(1, lane.used / 1000), size = 2 + 1.8 * used, half = size / 2;
  const numbered = lane.dropped ? 0.2 * lane.length : -100; // where its number stands
  lane.shift = ((lane.shift || 0) + passed * (18 + 110 * used)) % DOT_GAP;
  for (let at = lane.shift; at < lane.length; at += DOT_GAP) {
    if (Math.abs(at - numbered) < 12) continue;
    const index = Math.round(at / DOT_STEP);
    paper.fillRect(lane.xs[index] - half, lane.ys[index] - half, size, size);
    blank = false;
  }
}

function goOn() {
  if (moving && !document.hidden && !frame) frame = requestAnimationFrame(step);
}

function setMoving(on) {
  moving = on;
  const button = $("motion");
  button.setAttribute("aria-pressed", String(!on));
  put(button, on ? "Stop motion" : "Show motion");
  if (on) goOn();
  else { paper.setTransform(1, 0, 0, 1, 0, 0); paper.clearRect(0, 0, canvas.width, canvas.height); blank = true; }
}

// ------------------------------------------------------------------------------------------------ words and numbers

let wanted = false, hovered = null, picked = null, notePlace = null;

function words() {
  if (!wanted) return;
  wanted = false;
  if (playback) player();
  if (!run) return;
  const {opening, ending, phase, last} = run;
  put($("name"), opening.name);
  put($("setup"), `${opening.setup}${opening.setup ? " · " : ""}run ${opening.run_id}`);
  show($("point"), Boolean(opening.point));
  put($("point"), opening.point);
  show($("virtual"), opening.dilation !== 1);
  put($("virtual"), `Virtual time: it runs ${digits(opening.dilation)} times slower than the clock on the wall, and times and rates here are virtual.`);
  const badge = ending ? ending.outcome : phase ? phase.name : "preparing";
  put($("badge"), badge);
  const name = ending ? `badge ${ending.outcome}` : "badge";
  if ($("badge").className !== name) $("badge").className = name;
  const answer = ending?.headline ?? "";
  show($("headline"), Boolean(answer));
  put($("headline"), answer);
  progress(phase, last, opening);
  iteration(last);
  curves();
  verdict();
  const total = run.lanes.reduce((sum, lane) => sum + lane.dropped, 0);
  put($("dropped"), run.links ? `${total.toLocaleString("en")} packet${total === 1 ? "" : "s"}` : DASH);
  put($("idle"), run.machine ? percentText(run.machine.idle_share) : DASH);
  put($("held"), run.shaping ? `${percentText(run.shaping.sent_share)} of rate` : DASH);
  list($("change-list"), run.changes.map(changeLine));
  show($("changes"), run.changes.length > 0);
  runs();
  const count = last && !ending ? ` ${last.number}${opening.phases[last.phase] ? `/${opening.phases[last.phase]}` : ""}` : "";
  document.title = `${badge}${count} · ${opening.name}`;
}

function progress(phase, last, opening) {
  const current = last && phase && last.phase.replaceAll("_", "-") === phase.name ? last : null;
  const total = current ? opening.phases[current.phase] : undefined;
  put($("phase"), run.ending ? "over" : phase ? phase.name : "preparing");
  put($("count"), current ? `${current.number}${total ? ` / ${total}` : ""}` : run.ending && last ? String(last.number) : DASH);
  show($("progress"), Boolean(total));
  if (total) $("progress").value = current.number / total;
  const begun = run.begun, since = begun && current ? current.number - begun.number : 0;
  const each = since > 0 ? (current.at_s - begun.at_s) / since : null;
  const left = each !== null && total ? `, ${timeText((total - current.number) * each)} to go` : "";
  put($("pace"), run.ending ? `iterations; record ${run.ending.record}` : each !== null ? `iterations, ${timeText(each)} each${left}` : "iterations");
}

function iteration(last) {
  put($("iteration-time"), last ? timeText(last.time_s) : DASH);
  const split = $("split"), list = $("parts");
  if (!split.children.length) {
    for (const [, name, colour] of PARTS) {
      make(split, "span").style.background = `var(${colour})`;
      const item = make(list, "li");
      make(item, "span", {class: "dot"}).style.background = `var(${colour})`;
      make(item, "span", {}, name);
      make(item, "b");
    }
  }
  PARTS.forEach(([key], index) => {
    const part = last ? last.parts_s[key] : 0, share = last && last.time_s ? part / last.time_s : 0;
    split.children[index].style.width = `${(100 * share).toFixed(1)}%`;
    put(list.children[index].lastChild, last ? timeText(part) : DASH);
    show(list.children[index], !last || part > 0);
  });
}

function curves() {
  const {last} = run;
  const all = last && run.iterations[run.iterations.length - 1] !== last ? [...run.iterations, last] : run.iterations;
  curve("time", all.filter(each => each.phase === last.phase).map(each => each.time_s), timeText);
  const losses = all.filter(each => each.loss !== null && !each.phase.startsWith("compute")).map(each => each.loss);
  for (const element of [$("loss-label"), $("loss-curve")]) element.toggleAttribute("hidden", losses.length === 0);
  curve("loss", losses, value => digits(value, 4));
}

function curve(name, values, text) {
  const least = Math.min(...values), most = Math.max(...values), span = most - least || 1;
  const points = values.map((value, index) => `${(300 * index / Math.max(1, values.length - 1)).toFixed(1)} ${(48 - 44 * (value - least) / span).toFixed(1)}`);
  const path = $(`${name}-curve`).firstElementChild, d = points.length > 1 ? `M${points.join("L")}` : "";
  if (path.getAttribute("d") !== d) path.setAttribute("d", d);
  put($(`${name}-now`), values.length ? text(values[values.length - 1]) : DASH);
  const label = values.length ? `${values.length} values from ${text(least)} to ${text(most)}` : "nothing yet";
  $(`${name}-curve`).setAttribute("aria-label", `${name === "time" ? "Iteration time" : "Loss"}: ${label}`);
}

function verdict() {
  const {ending} = run, against = Object.values(run.against).flat();
  put($("verdict-title"), ending ? "Verdict" : "Verdict so far");
  const text = ending ? `${ending.outcome}: ${ending.meaning}` : against.length ? "Not as it should be:" : "Nothing against it.";
  put($("verdict-text"), text);
  $("verdict-text").className = !ending && against.length ? "against" : "";
  const said = ending ? [...ending.reasons, ...ending.notes.map(note => `note: ${note}`)] : against;
  list($("reasons"), said.map(text => [["span", text]]));
  show($("verdict-note"), !ending);
}

const changeLine = each => [["time", clockText(each.at_s)], ["span", `${each.sender} → ${each.receiver}: ${each.setting === "carrier" ? each.after : `${each.setting} ${each.before} → ${each.after}`}${each.source === "schedule" ? "" : each.source === "trace" ? ", by a trace" : ", manually"}`]];

// Lines of [element, text] pairs; what is there already stays.
function list(parent, lines) {
  while (parent.children.length > lines.length) parent.lastChild.remove();
  lines.forEach((parts, index) => {
    const item = parent.children[index] || make(parent, "li");
    const key = JSON.stringify(parts);
    if (item.dataset.key === key) return;
    item.dataset.key = key;
    item.replaceChildren();
    for (const [name, text] of parts) make(item, name, {}, text);
  });
}

function runs() {
  show($("past"), past.length > 0);
  const body = $("past-rows");
  while (body.children.length > past.length) body.lastChild.remove();
  past.forEach((each, index) => {
    const line = body.children[index] || make(body, "tr"), cells = [each.point, each.outcome, each.iteration_time_s === null ? DASH : timeText(each.iteration_time_s)];
    cells.forEach((text, column) => put(line.children[column] || make(line, "td"), text));
  });
}

function row(lane) {
  const line = make($("rows"), "tr"), name = `${lane.direction.sender} → ${lane.direction.receiver}`;
  const button = make(make(line, "th", {scope: "row"}), "button", {type: "button", "aria-pressed": "false"}, name);
  button.addEventListener("click", () => pick(lane === picked ? null : lane));
  line.addEventListener("pointerenter", () => lane.reach.classList.add("picked"));
  line.addEventListener("pointerleave", () => lane !== picked && lane.reach.classList.remove("picked"));
  const cells = ["", "", "spare", "spare", ""].map(kind => make(line, "td", kind ? {class: kind} : {}));
  const bar = make(make(cells[1], "span", {class: "bar"}), "i"), used = make(cells[1], "span");
  return {button, cells, bar, used};
}

function pick(lane) {
  for (const each of run.lanes) {
    each.reach.classList.toggle("picked", each === lane);
    each.row.button.setAttribute("aria-pressed", String(each === lane));
  }
  picked = lane;
}

function table() {
  if (!run || !run.links || document.hidden) return;
  const {links} = run;
  run.lanes.forEach((lane, index) => {
    const {cells, bar, used} = lane.row, rate = links.rate_bps[index];
    put(cells[0], lane.down ? "down" : rate === null ? "unshaped" : rateText(rate));
    cells[0].className = lane.down ? "down" : "";
    put(used, lane.used === null ? DASH : `${(lane.used / 10).toFixed(0)} %`);
    const width = `${Math.min(100, (lane.used || 0) / 10).toFixed(0)}%`;
    if (bar.style.width !== width) bar.style.width = width;
    put(cells[2], lane.used === null || rate === null ? DASH : lane.used ? rateText(rate * lane.used / 1000) : DASH);
    put(cells[3], links.waiting_bytes[index] ? sizeText(links.waiting_bytes[index]) : DASH);
    put(cells[4], lane.dropped.toLocaleString("en"));
    cells[4].className = lane.dropped ? "some" : "";
  });
}

function moveNote(event) { notePlace = {x: event.clientX, y: event.clientY}; note(); }

function note() {
  if (!hovered || !notePlace || !run || !run.links) return;
  const box = $("note"), lane = hovered, rate = run.links.rate_bps[lane.index];
  const used = lane.down ? "down" : lane.used === null || rate === null ? DASH : `${(lane.used / 10).toFixed(0)} % of ${rateText(rate)}`;
  const waiting = run.links.waiting_bytes[lane.index];
  put(box, `${lane.direction.sender} → ${lane.direction.receiver}: ${used}${waiting ? `, ${sizeText(waiting)} waiting` : ""}${lane.dropped ? `, ${lane.dropped} dropped` : ""}`);
  show(box, true);
  box.style.left = `${Math.min(notePlace.x + 14, innerWidth - box.offsetWidth - 8)}px`;
  box.style.top = `${Math.min(notePlace.y + 14, innerHeight - box.offsetHeight - 8)}px`;
}

// ------------------------------------------------------------------------------------------------ a record's replay

let dragged = false;

function player() {
  show($("player"), true);
  put($("play"), playback.paused ? "Play" : "Pause");
  const seek = $("seek");
  seek.min = playback.begin_s;
  seek.max = playback.end_s;
  if (!dragged) seek.value = playback.at_s;
  place(Number(seek.value));
  const speed = $("speed"), values = [...new Set([0.25, 0.5, 1, 2, 4, 10, 30, 100, playback.speed])].sort((one, other) => one - other);
  if (speed.dataset.values !== values.join()) {
    speed.dataset.values = values.join();
    speed.replaceChildren();
    for (const value of values) make(speed, "option", {value}, `${digits(value)} ×`);
  }
  if (document.activeElement !== speed) speed.value = String(playback.speed);
}

function place(at) {
  const text = `${clockText(at - playback.begin_s)} of ${clockText(playback.end_s - playback.begin_s)}`;
  put($("position"), text);
  $("seek").setAttribute("aria-valuetext", text);
}

async function ask(what) {
  try {
    await fetch("playback", {method: "POST", headers: {"content-type": "application/json"}, body: JSON.stringify(what)});
  } catch { put($("connection"), "The replay does not answer."); }
}

$("play").addEventListener("click", () => ask({paused: !playback.paused}));
$("speed").addEventListener("change", event => ask({speed: Number(event.target.value)}));
$("seek").addEventListener("input", event => { dragged = true; place(Number(event.target.value)); });
$("seek").addEventListener("change", event => { dragged = false; ask({at_s: Number(event.target.value)}); });

// ------------------------------------------------------------------------------------------------ the legend, the connection

function key() {
  const parent = $("key");
  const swatch = (make_) => { const span = make(parent, "span"); const svg = document.createElementNS(SVG, "svg"); span.append(svg); return make_(svg, span); };
  swatch((svg, span) => {
    svg.setAttribute("width", 176);
    svg.setAttribute("height", 12);
    for (let bin = 0; bin <= 10; bin += 1) make(svg, "path", {class: `lane u${bin}`, d: `M${4 + bin * 16} 6h11`});
    span.prepend("0 %");
    span.append("100 %");
  });
  swatch((svg, span) => {
    svg.setAttribute("width", 34);
    svg.setAttribute("height", 12);
    make(svg, "path", {class: "lane down", d: "M1 6h32"});
    make(svg, "path", {class: "cross down", d: "M12 1L22 11M22 1L12 11"});
    span.append("down");
  });
  swatch((svg, span) => {
    svg.setAttribute("width", 20);
    svg.setAttribute("height", 14);
    const lost = make(svg, "g", {class: "lost some", transform: "translate(10 7)"});
    make(lost, "rect", {x: -10, y: -7, width: 20, height: 14, rx: 4});
    make(lost, "text", {}, "12");
    span.append("packets dropped by a full queue");
  });
}

function connect() {
  const events = new EventSource("events");
  events.addEventListener("state", event => { run = null; past = []; playback = null; over = false; picked = null; hovered = null; hear(JSON.parse(event.data)); });
  events.addEventListener("messages", event => hear(JSON.parse(event.data)));
  events.addEventListener("open", () => put($("connection"), ""));
  events.addEventListener("error", () => put($("connection"), over ? "" : "Connection lost; trying again."));
  return events;
}

key();
setMoving(moving);
const events = connect();
setInterval(() => { words(); note(); if (over) { events.close(); put($("connection"), "The command has ended; this is what there was."); } }, 250);
setInterval(table, 1000);
quiet.addEventListener("change", () => setMoving(!quiet.matches));
dark.addEventListener("change", resize);
document.addEventListener("visibilitychange", goOn);
new ResizeObserver(resize).observe($("stage"));
$("motion").addEventListener("click", () => setMoving(!moving));
