'use strict';
// The page of a triscope timeline. Data comes from the page itself; nothing is loaded. Texts of
// traces become text nodes or pixels, never markup.
(() => {
const $ = id => document.getElementById(id);

/** An element with attributes and children; texts become text nodes. */
function el(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith('on')) e.addEventListener(key.slice(2), value);
    else if (key === 'style') Object.assign(e.style, value);
    else e.setAttribute(key, value);
  }
  e.append(...children.filter(c => c !== null && c !== undefined));
  return e;
}

// ---- kinds of items: name, light colour, dark colour, part of the lane's height ----
const KINDS = [
  ['on a CPU', '#2f9e5b', '#3fb871', 1],
  ['runnable, woken', '#e3b310', '#d8ad20', 0.72],
  ['runnable, preempted', '#ec7a1c', '#f08a35', 0.72],
  ['sleeping', '#c9d1da', '#39424e', 0.16],
  ['blocked in the kernel', '#7a45c4', '#9a6ae8', 0.5],
  ['stopped', '#8d5a5a', '#a77272', 0.5],
  ['not known', '#dcdfe4', '#30353d', 0.36],
  ['running', '#46a6c9', '#4fb3d6', 1],
  ['running, but no CPU', '#ec7a1c', '#f08a35', 0.72],
  ['running, waits in the kernel', '#a06ad0', '#b182e0', 0.72],
  ['runnable, waits for a P', '#e3b310', '#d8ad20', 0.72],
  ['waiting', '#c9d1da', '#39424e', 0.16],
  ['system call', '#a06ad0', '#b182e0', 0.72],
  ['GC', '#3b74d1', '#5a92ec', 1],
  ['stop-the-world', '#df5c86', '#f07fa4', 1],
  ['task', '#17877d', '#2aa89c', 1],
  ['region', '#5b7fa8', '#6f95c0', 1],
  ['GC assist', '#c25fa0', '#d376b3', 1],
  ['sweep', '#8f83c9', '#a298dc', 1],
  ['compilation', '#8a7a2d', '#b5a24a', 1],
  ['lock wait', '#9c4a2f', '#c0694b', 1],
  ['activity', '#17877d', '#2aa89c', 1],
  ['log', '#555f6d', '#aab4c2', 1],
  ['exception', '#d63f3f', '#ff7a7a', 1],
  ['event', '#555f6d', '#aab4c2', 1],
  ['loss', '#d63f3f', '#e05656', 1],
  ['sample', '#2f9e5b', '#3fb871', 1],
  ['off the CPU', '#8fa3b8', '#5d6b7c', 0.72],
  ['allocation', '#8a7a2d', '#b5a24a', 1],
  ['system call, but no CPU', '#ec7a1c', '#f08a35', 0.72],
  ['queued', '#b58a3c', '#c79c4e', 1],
  ['starvation', '#d63f3f', '#ff7a7a', 1],
];
const EXECUTES = new Set([0, 7, 8, 9, 12, 29]);
/** Kinds whose `by` has the CPU that they wait for; of others it is the waker. */
const TAKEN = new Set([2, 8, 29]);
const LOCK_WAIT = 20;
const PALETTE = ['#3b82d6', '#e0703a', '#3a9d62', '#a55fc7', '#c99a1d', '#cf4f7b', '#2a9aa8', '#7d6b57'];
/** Kinds whose colour is that of their name. */
const NAMED = new Set([15, 16, 21]);
const WHAT = {
  on_cpu: '#2f9e5b', running: '#46a6c9', syscall: '#a06ad0', waits_for_cpu: '#ec7a1c',
  waits_for_p: '#e3b310', not_recorded: '#b9bec6', blocked: '#7a45c4', stopped: '#8d5a5a', waits: '#8fa3b8',
  throttled: '#c2385b', queued: '#b58a3c', unknown: '#b9bec6',
};
const CPU = 1, PROCESS = 2, THREAD = 3, PROC = 5, GOROUTINE = 6, DOTNET = 7;
const BY = [null, 'a hardware interrupt', 'a software interrupt (network, timers)', 'nobody: the CPU is idle (quota, cpuset or wake-up latency)', 'a thread that was not recorded'];
const RESERVED = 4;
const RULER = 26, OVERVIEW = 44, GUTTER = 232, LANE = 20, GROUP = 23, CHART = 34;

let data, bytes, rows = [], theme;
const view = { t0: 0, t1: 1, y: 0 };
/** Where the pointer is over the timeline, unless it drags. */
let hover = null;
/** The lane, group or critical path that keys act on. */
let cursor = null;
let selection = null, lane = null, matches = null, path = null, pointer = { x: 0, y: 0 };

// ---- reading ----
async function load() {
  const base64 = $('data').textContent;
  $('data').remove();
  const binary = atob(base64);
  const packed = new Uint8Array(binary.length);
  for (let i = 0; i < packed.length; i++) packed[i] = binary.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate'));
  bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(bytes.buffer).getUint32(0, true);
  data = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  let offset = 4 + length;
  data.tracks = data.tracks.map(([group, name, form, owner, count, size], id) => {
    const track = { id, group, name, form, owner, count, offset, size, items: null };
    offset += size;
    return track;
  });
  data.groups = data.groups.map(([name, parent, open, process, main], i) =>
    ({ id: i + 1, name, parent, open: !!open, process, main, tracks: [], groups: [] }));
  data.root = { tracks: [], groups: [] };
  for (const group of data.groups) (data.groups[group.parent - 1] || data.root).groups.push(group);
  for (const track of data.tracks) (data.groups[track.group - 1] || data.root).tracks.push(track);
  data.cpus = data.tracks.filter(t => t.form === 0);
  const colors = new Map();
  let next = 0;
  const isAny = !data.groups.some(group => group.main);
  for (const group of data.root.groups) {
    if (group.process && (isAny || group.main) && next < PALETTE.length) colors.set(processOf(group.process), PALETTE[next++]);
  }
  data.colors = colors;
  data.charted = new Set(data.groups.filter(group => group.process).map(group => processOf(group.process)));
}

/** Kinds of items in the lanes that are decoded, and how many of them the legend has. */
const used = new Set();
let explained = 0;

/** The columns of a lane, decoded when it is first needed. */
function items(track) {
  if (track.items) return track.items;
  let at = track.offset;
  const varint = () => {
    let byte = bytes[at++];
    if (byte < 128) return byte;
    let value = byte & 127, factor = 128;
    do {
      byte = bytes[at++];
      value += (byte & 127) * factor;
      factor *= 128;
    } while (byte > 127);
    return value;
  };
  const n = track.count;
  const begin = new Float64Array(n), end = new Float64Array(n);
  if (track.form === 3) {
    const value = new Float64Array(n), words = new DataView(bytes.buffer);
    let time = 0;
    for (let i = 0; i < n; i++) {
      time += varint();
      begin[i] = time;
      value[i] = words.getFloat64(at, true);
      at += 8;
    }
    for (let i = 0; i < n; i++) end[i] = i + 1 < n ? begin[i + 1] : data.nanos;
    return track.items = { n, begin, end, value };
  }
  const kind = new Uint8Array(n);
  const [owner, who, by, text, stack] = Array.from({ length: 5 }, () => new Int32Array(n));
  let time = 0;
  for (let i = 0; i < n;) {
    time += varint();
    const entity = varint();
    for (let left = varint(); left > 0 && i < n; left--, i++) {
      time += varint();
      begin[i] = time;
      time += varint();
      end[i] = time;
      kind[i] = bytes[at++];
      owner[i] = entity;
      who[i] = varint();
      by[i] = varint();
      text[i] = varint();
      stack[i] = varint();
    }
  }
  // Lanes of CPUs have the colours of processes.
  if (track.form !== 0) for (const one of kind) used.add(one);
  return track.items = { n, begin, end, kind, owner, who, by, text, stack };
}

/** The first item that ends after `time`. */
function firstAfter(d, time) {
  let low = 0, high = d.n;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (d.end[middle] <= time && !(d.end[middle] === time && d.begin[middle] === time)) low = middle + 1;
    else high = middle;
  }
  return low;
}

// ---- names ----
const text = id => id ? data.texts[id - 1] : '';
const entity = id => data.entities[id - RESERVED - 1] || [0, 0, 0, 0];
const kindOf = id => id > RESERVED ? entity(id)[0] : 0;
const bare = id => text(entity(id)[2]);

function label(id) {
  if (!id) return '';
  if (id <= RESERVED) return BY[id];
  const [kind, number, nameId] = entity(id), name = text(nameId);
  const own = [number, 'CPU ' + number, 'process ' + number, 'thread ' + number, 'M ' + number,
    'P' + number, 'G' + number, 'thread ' + number, 'task ' + number, '' + number, 'GC ' + number][kind];
  if (kind === CPU || kind === PROC || !name) return '' + own;
  return kind === PROCESS && number < 0 ? name : `${name} (${own})`;
}

const processes = new Map();
/** The process of an entity as a key, which is that of the kernel: several sources can describe one process. */
function processOf(id) {
  let process = processes.get(id);
  if (process === undefined) processes.set(id, process = findProcess(id));
  return process;
}
function findProcess(id) {
  for (let left = 4; id > RESERVED && left > 0; left--) {
    const [kind, , , parent, process] = entity(id);
    if (kind === PROCESS) return process;
    id = parent;
  }
  return null;
}

function duration(nanos) {
  const n = Math.abs(nanos);
  if (n < 1e3) return `${Math.round(nanos)} ns`;
  if (n < 1e6) return `${+(nanos / 1e3).toPrecision(4)} µs`;
  if (n < 1e9) return `${+(nanos / 1e6).toPrecision(4)} ms`;
  return n < 1e13 ? `${+(nanos / 1e9).toPrecision(4)} s` : `${(nanos / 1e9).toFixed(1)} s`;
}
const at = nanos => `${(nanos / 1e9).toFixed(9).replace(/(\.\d{3})(\d{3})(\d{3})$/, '$1 $2 $3')} s`;
const count = n => n.toLocaleString('en', Number.isInteger(n) ? {} : { maximumSignificantDigits: 6 });

// ---- colours ----
const rgb = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));
/** Black or white: the one that contrasts more with a colour, by WCAG's luminance. It is at least 4.5 to 1. */
function ink(color) {
  const [r, g, b] = color.map(c => c <= 10 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? '#000000' : '#ffffff';
}
/** A colour of items, and that of the text on them. */
const fill = hex => ({ hex, rgb: rgb(hex), ink: ink(rgb(hex)) });
/** Of a function in a flame graph. */
function flameColor(name) {
  const hash = [...name].reduce((h, c) => (h * 31 + c.charCodeAt(0)) >>> 0, 7);
  const hue = 18 + hash % 38, light = (theme.dark ? 42 : 62 + hash % 9) / 100;
  const amplitude = (60 + hash % 20) / 100 * Math.min(light, 1 - light);
  // As CSS converts hsl().
  return [0, 8, 4].map(n => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (light - amplitude * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  });
}
function chooseTheme(dark) {
  document.documentElement.classList.toggle('dark', dark);
  theme = dark
    ? { dark, back: '#14171c', panel: '#1b1f26', line: '#262c35', text: '#e4e8ee', dim: '#8b96a5', accent: '#6cb2ff', other: '#59636f', select: '#ffffff', stripe: '#171b21' }
    : { dark, back: '#ffffff', panel: '#f6f7f9', line: '#e6e9ed', text: '#1c2430', dim: '#677282', accent: '#0b66d0', other: '#aab4bf', select: '#0b1626', stripe: '#fafbfc' };
  theme.kinds = KINDS.map(k => dark ? k[2] : k[1]);
  theme.fills = theme.kinds.map(fill);
  theme.otherFill = fill(theme.other);
  theme.named = PALETTE.map(fill);
  theme.processes = new Map([...data.colors].map(([key, hex]) => [key, fill(hex)]));
  draw();
}
const processColor = key => theme.processes.get(key) || theme.otherFill;

// ---- rows ----
function arrange() {
  rows = [];
  let y = 0;
  const add = (row, height) => { rows.push(Object.assign(row, { y, height })); y += height; };
  const walk = (node, depth) => {
    node.tracks.forEach((track, i) => {
      const isRepeated = i > 0 && node.tracks[i - 1].name === track.name;
      add({ track, depth, name: isRepeated ? '' : track.name }, track.form === 3 ? CHART : LANE);
    });
    for (const group of node.groups) {
      add({ group, depth }, GROUP);
      if (group.open) walk(group, depth + 1);
    }
  };
  if (path) add({ path, depth: 0 }, LANE + 6);
  walk(data.root, 0);
  rows.height = y;
  clampView();
}

const canvas = $('canvas');
const size = () => ({ w: canvas.clientWidth, h: canvas.clientHeight });
const plotTop = () => OVERVIEW + RULER;

/** The narrowest view, in nanoseconds. Times are doubles: late ones are not exact to the nanosecond. */
const least = () => Math.max(20, (data.nanos || 1) * 2 ** -45);
function clampView() {
  const whole = data.nanos || 1;
  let span = Math.min(Math.max(view.t1 - view.t0, least()), whole * 1.04);
  view.t0 = Math.min(Math.max(view.t0, -whole * 0.02), whole * 1.02 - span);
  view.t1 = view.t0 + span;
  view.y = Math.max(0, Math.min(view.y, rows.height - (size().h - plotTop()) + 12));
}
/** The width of lanes; a window can be as narrow as their names. */
const plotWidth = (w = size().w) => Math.max(1, w - GUTTER);
const scale = () => plotWidth() / (view.t1 - view.t0);
const toX = time => GUTTER + (time - view.t0) * scale();
const toTime = x => view.t0 + (x - GUTTER) / scale();

let queued = false;
function draw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; paint(); });
}

// ---- painting ----
function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
  if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
    canvas.width = Math.round(w * ratio);
    canvas.height = Math.round(h * ratio);
  }
  const g = canvas.getContext('2d');
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, w, h);
  g.font = '12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
  g.textBaseline = 'middle';
  return { g, w, h };
}

/** A text that fits. Of a longer one, what is in the middle is an ellipsis: names often differ at their end. */
function fit(g, string, width) {
  if (width < 14) return '';
  const letter = 6.3;
  if (string.length * letter * 0.75 < width && g.measureText(string).width <= width) return string;
  const cut = kept => string.slice(0, Math.ceil(kept / 2)) + '…' + string.slice(string.length - Math.floor(kept / 2));
  let low = 0, high = Math.min(string.length, Math.ceil(width / 3));
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (g.measureText(cut(middle)).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 1 ? cut(low) : '';
}

function paint() {
  if (!data || $('timeline').hidden) return;
  const { g, w, h } = prepare(canvas);
  clampView();
  g.fillStyle = theme.back;
  g.fillRect(0, 0, w, h);
  const usage = usageInView(w);
  g.save();
  g.beginPath();
  g.rect(0, plotTop(), w, h - plotTop());
  g.clip();
  paintGrid(g, w, h);
  for (const row of rows) {
    const y = plotTop() + row.y - view.y;
    if (y > h || y + row.height < plotTop()) continue;
    if (row.track) paintTrack(g, row, y, w);
    else if (row.group) paintGroup(g, row, y, w, usage);
    else paintPath(g, y, w);
  }
  paintMissing(g, toX(data.missingSince), plotTop(), w, h);
  paintSelection(g, w, h);
  const at = cursorRow();
  if (at) {
    g.strokeStyle = theme.accent;
    g.strokeRect(1.5, plotTop() + at.y - view.y + 1.5, GUTTER - 4, at.height - 3);
  }
  g.restore();
  g.strokeStyle = theme.line;
  g.beginPath();
  g.moveTo(GUTTER - 0.5, plotTop());
  g.lineTo(GUTTER - 0.5, h);
  g.stroke();
  paintOverview(g, w);
  paintRuler(g, w, h);
  if (!selection && !lane && used.size > explained) showDetails();
  // Another interval can be under the pointer.
  if (hover) showTip(hover.x, hover.y);
}

function steps(w) {
  const least = (view.t1 - view.t0) * 110 / Math.max(w - GUTTER, 1);
  let step = 10 ** Math.ceil(Math.log10(least));
  for (const part of [5, 2]) if (step / part >= least) { step /= part; break; }
  return step;
}

function paintGrid(g, w, h) {
  const step = steps(w);
  g.fillStyle = theme.line;
  for (let t = Math.ceil(view.t0 / step) * step; t <= view.t1; t += step) {
    g.fillRect(Math.round(toX(t)), plotTop(), 1, h);
  }
}

/** Shades the time in which intervals are missing: a lane without them looks idle. */
function paintMissing(g, x, y, w, h) {
  if (data.missingSince < 0 || x >= w) return;
  g.fillStyle = theme.kinds[6] + '99';
  g.fillRect(Math.max(GUTTER, x), y, w - Math.max(GUTTER, x), h);
}

function paintRuler(g, w) {
  const y = OVERVIEW;
  g.fillStyle = theme.panel;
  g.fillRect(0, y, w, RULER);
  g.fillStyle = theme.line;
  g.fillRect(0, y + RULER - 1, w, 1);
  g.fillStyle = theme.dim;
  g.fillText(`view ${duration(view.t1 - view.t0)}`, 12, y + RULER / 2);
  const step = steps(w);
  for (let t = Math.ceil(view.t0 / step) * step; t <= view.t1; t += step) {
    const x = toX(t);
    if (x < GUTTER) continue;
    g.fillRect(Math.round(x), y + RULER - 6, 1, 5);
    g.fillText(tick(t, step), x + 4, y + RULER / 2);
  }
}

function tick(t, step) {
  const [unit, name] = step >= 1e8 ? [1e9, 's'] : step >= 1e5 ? [1e6, 'ms'] : step >= 100 ? [1e3, 'µs'] : [1, 'ns'];
  const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / unit) - 1e-9)));
  return `${(t / unit).toFixed(digits)} ${name}`;
}

/** Processes on CPUs by column: key → Float32Array, from the lanes of the CPUs. Those without a group share one. */
let usageCache = { key: '' };
function usageInView(w) {
  const key = `${view.t0},${view.t1},${w}`;
  if (usageCache.key === key) return usageCache.map;
  const map = cpuUse(view.t0, view.t1, Math.max(1, Math.ceil((w - GUTTER) / 2)));
  usageCache = { key, map };
  return map;
}

function cpuUse(t0, t1, columns) {
  const map = new Map(), perColumn = (t1 - t0) / columns;
  const lanes = data.cpus.length ? data.cpus : data.tracks.filter(t => t.form === 1 && kindOf(t.owner) === PROC);
  for (const track of lanes) {
    const d = items(track);
    for (let i = firstAfter(d, t0); i < d.n && d.begin[i] < t1; i++) {
      if (track.form === 1 && !EXECUTES.has(d.kind[i])) continue;
      const key = processOf(track.form === 0 ? d.who[i] : d.owner[i]), process = data.charted.has(key) ? key : null;
      let use = map.get(process);
      if (!use) map.set(process, use = new Float32Array(columns));
      let from = (Math.max(d.begin[i], t0) - t0) / perColumn;
      const to = (Math.min(d.end[i], t1) - t0) / perColumn;
      while (from < to) {
        const column = Math.floor(from), next = Math.min(column + 1, to);
        if (column < columns) use[column] += next - from;
        from = next;
      }
    }
  }
  map.lanes = Math.max(1, lanes.length);
  return map;
}

function paintOverview(g, w) {
  g.fillStyle = theme.panel;
  g.fillRect(0, 0, w, OVERVIEW);
  const width = plotWidth(w);
  if (!data.overview || data.overview.width !== width) {
    data.overview = { width, map: cpuUse(0, data.nanos || 1, Math.max(1, Math.ceil(width / 2))) };
  }
  const { map } = data.overview, top = 5, height = OVERVIEW - 10;
  const order = [...map].sort((a, b) => rank(a[0]) - rank(b[0]));
  const base = new Float32Array(Math.ceil(width / 2));
  for (const [key, use] of order) {
    g.fillStyle = processColor(key).hex;
    for (let c = 0; c < use.length; c++) {
      const part = use[c] / map.lanes * height;
      if (part > 0.1) g.fillRect(GUTTER + c * 2, top + height - base[c] - part, 2, part);
      base[c] += part;
    }
  }
  paintMissing(g, GUTTER + data.missingSince / (data.nanos || 1) * width, 0, w, OVERVIEW);
  const x0 = GUTTER + view.t0 / (data.nanos || 1) * width, x1 = GUTTER + view.t1 / (data.nanos || 1) * width;
  g.fillStyle = theme.dark ? '#0008' : '#fff9';
  g.fillRect(GUTTER, 0, Math.max(0, x0 - GUTTER), OVERVIEW);
  g.fillRect(x1, 0, Math.max(0, w - x1), OVERVIEW);
  g.strokeStyle = theme.accent;
  g.strokeRect(Math.max(x0, GUTTER) + 0.5, 1.5, Math.max(2, Math.min(x1, w) - Math.max(x0, GUTTER) - 1), OVERVIEW - 3);
  g.fillStyle = theme.dim;
  g.fillText(data.cpus.length ? `${data.cpus.length} CPUs` : map.size ? 'Ps in use' : '', 12, OVERVIEW / 2 - 8);
  g.fillText(duration(data.nanos), 12, OVERVIEW / 2 + 8);
}
const rank = key => { let i = 0; for (const k of data.colors.keys()) { if (k === key) return i; i++; } return 99; };

function paintName(g, row, y, name, color) {
  g.fillStyle = theme.back;
  g.fillRect(0, y, GUTTER - 1, row.height);
  g.fillStyle = color;
  const x = 12 + row.depth * 13;
  g.fillText(fit(g, name, GUTTER - x - 6), x, y + row.height / 2);
}

function paintGroup(g, row, y, w, usage) {
  const { group } = row, main = row.depth === 0;
  g.fillStyle = theme.panel;
  g.fillRect(0, y, w, row.height);
  g.fillStyle = theme.line;
  g.fillRect(0, y + row.height - 1, w, 1);
  const x = 8 + row.depth * 13;
  if (group.process) {
    g.fillStyle = processColor(processOf(group.process)).hex;
    g.fillRect(x + 14, y + row.height / 2 - 4, 8, 8);
  }
  g.fillStyle = theme.dim;
  g.fillText(group.open ? '▾' : '▸', x, y + row.height / 2);
  g.fillStyle = theme.text;
  const font = g.font;
  if (main) g.font = '600 ' + font;
  const left = x + (group.process ? 28 : 14);
  g.fillText(fit(g, group.name, GUTTER - left - 6), left, y + row.height / 2);
  g.font = font;
  if (group.process) {
    const use = usage.get(processOf(group.process));
    if (use) {
      g.fillStyle = processColor(processOf(group.process)).hex;
      for (let c = 0; c < use.length; c++) {
        const part = Math.min(1, use[c] / usage.lanes) * (row.height - 5);
        if (part > 0.2) g.fillRect(GUTTER + c * 2, y + row.height - 2 - part, 2, part);
      }
    }
  } else if (!group.open) {
    paintFolded(g, group, y, row.height, w);
  }
}

/** A folded group: how many of its lanes execute. */
function paintFolded(g, group, y, height, w) {
  const columns = Math.ceil(plotWidth(w) / 2), key = `${view.t0},${view.t1},${w}`;
  if (!group.folded || group.folded.key !== key) {
    const use = new Float32Array(columns), perColumn = (view.t1 - view.t0) / columns;
    const walk = node => {
      for (const track of node.tracks) {
        if (track.form === 3) continue;
        const d = items(track);
        for (let i = firstAfter(d, view.t0); i < d.n && d.begin[i] < view.t1; i++) {
          if (track.form === 1 && !EXECUTES.has(d.kind[i])) continue;
          let from = (Math.max(d.begin[i], view.t0) - view.t0) / perColumn;
          const to = Math.max((Math.min(d.end[i], view.t1) - view.t0) / perColumn, from + 0.02);
          while (from < to) {
            const column = Math.floor(from), next = Math.min(column + 1, to);
            if (column < columns) use[column] += next - from;
            from = next;
          }
        }
      }
      node.groups.forEach(walk);
    };
    walk(group);
    group.folded = { key, use, most: Math.max(1, ...use) };
  }
  const { use, most } = group.folded;
  g.fillStyle = theme.kinds[7];
  for (let c = 0; c < use.length; c++) {
    const part = use[c] / most * (height - 6);
    if (part > 0.1) g.fillRect(GUTTER + c * 2, y + height - 3 - part, 2, Math.max(1, part));
  }
}

function paintTrack(g, row, y, w) {
  const { track } = row, d = items(track);
  if (track.form === 3) {
    paintCounter(g, track, d, y, row.height, w);
  } else {
    paintItems(g, track, d, y, w);
  }
  paintName(g, row, y, row.name, theme.dim);
}

function itemColor(track, d, i) {
  if (track.form === 0) return processColor(processOf(d.who[i]));
  if (NAMED.has(d.kind[i])) return theme.named[d.text[i] % PALETTE.length];
  return theme.fills[d.kind[i]];
}

function itemLabel(track, d, i) {
  if (track.form === 0) {
    const name = bare(d.who[i]) || label(d.who[i]);
    return d.by[i] ? `${name}: ${label(d.by[i])}` : name;
  }
  if (track.form === 2) return text(d.text[i]) || label(d.owner[i]);
  if (kindOf(d.owner[i]) === THREAD) return kindOf(d.who[i]) === GOROUTINE ? label(d.who[i]) : d.kind[i] === 0 ? label(d.by[i]) : '';
  if (kindOf(d.owner[i]) === PROC) return label(d.who[i]);
  if (kindOf(d.owner[i]) === GOROUTINE && EXECUTES.has(d.kind[i])) return `G${entity(d.owner[i])[1]}` + (kindOf(d.by[i]) === CPU ? ` on ${label(d.by[i])}` : '');
  return text(d.text[i]);
}

function isMatch(track, d, i) {
  return matches.entities[d.owner[i]] || matches.entities[d.who[i]] || matches.texts[d.text[i]]
    || (track.form === 0 && matches.entities[d.by[i]]);
}

/** Items of at least a pixel are drawn; smaller ones are mixed by column. */
function paintItems(g, track, d, y, w) {
  const s = scale(), t0 = view.t0, t1 = toTime(w), top = y + 2, height = LANE - 4;
  // States are beside one another: less interesting ones are lower.
  const heightOf = kind => track.form === 1 ? KINDS[kind][3] : 1;
  let column = -1, cover = 0, red = 0, green = 0, blue = 0;
  const flush = () => {
    if (cover > 0.004) {
      const alpha = Math.min(1, Math.max(cover, 0.35));
      g.fillStyle = `rgba(${red / cover | 0},${green / cover | 0},${blue / cover | 0},${alpha})`;
      g.fillRect(GUTTER + column, top, 1, height);
    }
    cover = red = green = blue = 0;
  };
  const labels = [];
  for (let i = firstAfter(d, t0); i < d.n && d.begin[i] < t1; i++) {
    const x0 = (d.begin[i] - t0) * s, x1 = (d.end[i] - t0) * s, kind = d.kind[i];
    const dimmed = matches && !isMatch(track, d, i);
    if (x1 - x0 < 1) {
      if (dimmed || heightOf(kind) < 0.2) continue;
      if ((x0 | 0) !== column) { flush(); column = x0 | 0; }
      const part = Math.max(x1 - x0, 0.05), c = itemColor(track, d, i).rgb;
      cover += part; red += c[0] * part; green += c[1] * part; blue += c[2] * part;
      continue;
    }
    const tall = heightOf(kind);
    const left = Math.max(GUTTER, GUTTER + x0), right = Math.min(w, GUTTER + x1);
    g.globalAlpha = dimmed ? 0.18 : 1;
    g.fillStyle = itemColor(track, d, i).hex;
    const part = Math.max(2, height * tall);
    // A gap of half a pixel separates neighbours of one colour.
    g.fillRect(left, top + (height - part) / 2, Math.max(0.6, right - left - (right - left > 3 ? 0.6 : 0)), part);
    g.globalAlpha = 1;
    if (right - left > 26 && !dimmed) labels.push([i, left, right, tall]);
  }
  flush();
  for (const [i, left, right, tall] of labels) {
    const shown = fit(g, itemLabel(track, d, i), right - left - 8);
    if (!shown) continue;
    const isLow = tall < 0.6;
    if (isLow) {
      // The item is lower than its text: it is interrupted.
      g.fillStyle = theme.back;
      g.fillRect(left + 2, top, g.measureText(shown).width + 4, height);
    }
    g.fillStyle = isLow ? theme.dim : itemColor(track, d, i).ink;
    g.fillText(shown, left + 4, y + LANE / 2 + 0.5);
  }
}

function paintCounter(g, track, d, y, height, w) {
  if (!d.n) return;
  if (d.most === undefined) {
    d.least = d.most = 0;
    for (const value of d.value) [d.least, d.most] = [Math.min(d.least, value), Math.max(d.most, value)];
  }
  // Bars are from 0, up or down.
  const unit = (height - 6) / (d.most - d.least || 1), zero = y + height - 2 + d.least * unit;
  const bar = (x, width, low, high) => g.fillRect(x, zero - high * unit, width, (high - low) * unit);
  g.fillStyle = theme.dark ? '#4fb3d655' : '#46a6c955';
  let column = -1, low = 0, high = 0;
  for (let i = firstAfter(d, view.t0); i < d.n && d.begin[i] < view.t1; i++) {
    const x0 = Math.max(GUTTER, toX(d.begin[i])), x1 = Math.min(w, toX(d.end[i]));
    const value = d.value[i];
    if (x1 - x0 >= 1) {
      bar(x0, x1 - x0, Math.min(0, value), Math.max(0, value));
    } else {
      if ((x0 | 0) !== column) {
        if (column >= 0) bar(column, 1, low, high);
        [column, low, high] = [x0 | 0, 0, 0];
      }
      [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
  }
  if (column >= 0) bar(column, 1, low, high);
}

function paintPath(g, y, w) {
  const height = LANE + 6;
  g.fillStyle = theme.panel;
  g.fillRect(0, y, w, height);
  const { pieces } = path;
  let low = 0, high = pieces.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (pieces[middle][0] + pieces[middle][1] <= view.t0) low = middle + 1; else high = middle;
  }
  // Of the pieces within one pixel the first one is drawn.
  let drawn = -1;
  for (let i = low; i < pieces.length && pieces[i][0] < view.t1; i++) {
    const piece = pieces[i], x0 = Math.max(GUTTER, toX(piece[0])), x1 = Math.min(w, toX(piece[0] + piece[1]));
    if (x1 - x0 < 1 && (x0 | 0) === drawn) continue;
    drawn = x0 | 0;
    const color = WHAT[piece[7]] || WHAT.unknown;
    g.fillStyle = color;
    g.fillRect(x0, y + 4, Math.max(0.7, x1 - x0 - 0.5), height - 8);
    if (x1 - x0 < 26) continue;
    const shown = fit(g, `${label(piece[2])}: ${piece[8]}`, x1 - x0 - 8);
    if (shown) { g.fillStyle = ink(rgb(color)); g.fillText(shown, x0 + 4, y + height / 2 + 0.5); }
  }
  paintName(g, { height, depth: 0 }, y, 'critical path', theme.accent);
}

const rowOf = track => rows.find(row => row.track === track);

function paintSelection(g, w, h) {
  if (path) {
    g.fillStyle = theme.dark ? '#6cb2ff12' : '#0b66d00d';
    const x0 = Math.max(GUTTER, toX(path.begin)), x1 = Math.min(w, toX(path.begin + path.nanos));
    if (x1 > x0) g.fillRect(x0, plotTop(), x1 - x0, h);
  }
  if (!selection) return;
  const { track, index } = selection, d = items(track), row = rowOf(track);
  if (!row) return;
  const y = plotTop() + row.y - view.y;
  const x0 = Math.max(GUTTER, toX(d.begin[index])), x1 = Math.min(w, toX(d.end[index]));
  if (x1 >= GUTTER && x0 <= w) {
    g.strokeStyle = theme.select;
    g.lineWidth = 2;
    g.strokeRect(x0, y + 1, Math.max(2, x1 - x0), row.height - 2);
    g.lineWidth = 1;
  }
  if (track.form === 3) return;
  const waker = wakerOf(track, d, index), from = waker && placeOf(waker, d.begin[index]);
  const acts = from && items(from.track);
  if (!from || acts.begin[from.index] > d.begin[index] || acts.end[from.index] < d.begin[index]) return;
  const fromRow = rowOf(from.track);
  if (!fromRow || fromRow === row || x0 <= GUTTER || x0 > w) return;
  const y0 = plotTop() + fromRow.y - view.y + (fromRow.y > row.y ? 2 : fromRow.height - 2);
  const y1 = y + (fromRow.y > row.y ? row.height : 0), sign = Math.sign(y1 - y0);
  g.strokeStyle = g.fillStyle = theme.accent;
  g.lineWidth = 1.5;
  g.beginPath();
  g.moveTo(x0, y0);
  g.lineTo(x0, y1 - 4 * sign);
  g.stroke();
  g.lineWidth = 1;
  g.beginPath();
  g.moveTo(x0, y1);
  g.lineTo(x0 - 4, y1 - 7 * sign);
  g.lineTo(x0 + 4, y1 - 7 * sign);
  g.fill();
}

// ---- where an entity is ----
function wakerOf(track, d, i) {
  return track.form === 1 && [THREAD, GOROUTINE, DOTNET].includes(kindOf(d.by[i])) && !TAKEN.has(d.kind[i]) ? d.by[i] : 0;
}

let lanesOf = null, threadsOf = null;
/** A thread of a process as a key: the kernel and a runtime describe it by an entity each. */
const threadKey = id => `${processOf(id)}:${entity(id)[1]}`;
/** The kernel's entity for a .NET thread without a lane. Of several with its number it is the last one that began by then. */
function threadAt(id, time) {
  if (lanesOf.has(id) || kindOf(id) !== DOTNET) return id;
  const all = threadsOf.get(threadKey(id)) || [id];
  const begin = thread => items(lanesOf.get(thread)).begin[0];
  if (all.length === 1) return all[0];
  const [last] = all.filter(thread => begin(thread) <= time).sort((a, b) => begin(b) - begin(a));
  return last || all[0];
}
/** The lane and item of an entity at a time. */
function placeOf(id, time) {
  if (!lanesOf) {
    lanesOf = new Map();
    for (const track of data.tracks) {
      if (track.form !== 1) continue;
      if (track.owner) { lanesOf.set(track.owner, track); continue; }
      const d = items(track);
      for (let i = 0; i < d.n; i++) if (!i || d.owner[i] !== d.owner[i - 1]) lanesOf.set(d.owner[i], track);
    }
    threadsOf = new Map();
    for (const thread of lanesOf.keys()) {
      if (kindOf(thread) !== THREAD) continue;
      const key = threadKey(thread);
      threadsOf.set(key, [...(threadsOf.get(key) || []), thread]);
    }
  }
  id = threadAt(id, time);
  const track = lanesOf.get(id);
  if (!track) return null;
  const d = items(track);
  let index = firstAfter(d, time);
  // At a boundary: the one that ends there, as it acted before.
  if (index > 0 && d.begin[index] === time && d.owner[index - 1] === id) index--;
  if (index >= d.n || d.owner[index] !== id) {
    // The last one before that time, or else the first one.
    const before = index > 0 ? d.owner.lastIndexOf(id, index - 1) : -1;
    index = before >= 0 ? before : d.owner.indexOf(id);
    if (index < 0) return null;
  }
  return { track, index };
}

// ---- the keyboard ----
const onRow = row => row.track || row.group || row.path;
const cursorRow = () => cursor && rows.find(row => onRow(row) === cursor);

/** Screen readers read it. */
function announce(words) { $('status').textContent = words; }

function rowWords({ track, group }) {
  if (group) return `${group.name}, ${group.open ? 'open' : 'folded'} group`;
  return track ? `${track.name}, ${count(track.count)} ${track.form === 3 ? 'value' : 'interval'}${track.count === 1 ? '' : 's'}` : 'critical path';
}

/** To the next row, or to the first one in view. */
function moveCursor(step) {
  const now = rows.indexOf(cursorRow()), first = rows.findIndex(row => row.y >= view.y);
  const row = rows[now < 0 ? Math.max(first, 0) : Math.max(0, Math.min(rows.length - 1, now + step))];
  if (!row) return;
  cursor = onRow(row);
  view.y = Math.min(row.y, Math.max(view.y, row.y + row.height - (size().h - plotTop())));
  announce(rowWords(row));
  draw();
}

/** Folds or unfolds a group, sums a lane, and selects the first piece of a path that is in view. */
function openCursor() {
  const row = cursorRow();
  if (!row) return;
  if (row.group) {
    row.group.open = !row.group.open;
    arrange();
    announce(rowWords(row));
  } else if (row.track) {
    selection = null;
    lane = row.track;
    showDetails();
    announce($('details').textContent);
  } else {
    const piece = path.pieces.find(piece => piece[0] + piece[1] > view.t0), place = piece && placeOf(piece[2], piece[0]);
    if (place) select(place.track, place.index, true);
  }
  draw();
}

// ---- selecting ----
function select(track, index, reveal) {
  selection = { track, index };
  lane = null;
  if (cursor !== path || !path) cursor = track;
  if (reveal) {
    let changed = false;
    for (let group = data.groups[track.group - 1]; group; group = data.groups[group.parent - 1]) {
      if (!group.open) changed = group.open = true;
    }
    if (changed) arrange();
    const d = items(track), long = Math.max(d.end[index] - d.begin[index], 1), span = view.t1 - view.t0;
    const hidden = d.end[index] < view.t0 || d.begin[index] > view.t1;
    if (hidden || long / span < 0.004 || long > span) {
      const width = long / span < 0.004 || long > span ? Math.max(long * 6, 100) : span;
      const middle = d.begin[index] + long / 2;
      [view.t0, view.t1] = [middle - width / 2, middle + width / 2];
    }
    const row = rowOf(track), room = size().h - plotTop();
    if (row && (row.y < view.y || row.y + row.height > view.y + room)) view.y = row.y - room / 3;
  }
  showDetails();
  announce(`${$('details').querySelector('h3').textContent}, ${duration(items(track).end[index] - items(track).begin[index])}`);
  draw();
}

function entityLink(id, time) {
  if (!id) return '–';
  const place = id > RESERVED && placeOf(id, time);
  if (!place) return label(id);
  return el('button', { class: 'link', onclick: () => select(place.track, place.index, true) }, label(id));
}

function pairs(list) {
  const dl = el('dl');
  for (const [name, value] of list) {
    if (value === '' || value === null || value === undefined) continue;
    dl.append(el('dt', {}, name), el('dd', {}, value));
  }
  return dl;
}

function showDetails() {
  const panel = $('details');
  panel.replaceChildren();
  panel.scrollTop = 0;
  if (!selection) return lane ? showLane(panel, lane) : showLegend(panel);
  const { track, index: i } = selection, d = items(track);
  if (track.form === 3) {
    panel.append(el('h3', {}, track.name), pairs([['value', count(d.value[i])], ['since', at(d.begin[i])], ['for', duration(d.end[i] - d.begin[i])]]));
    return;
  }
  const begin = d.begin[i], long = d.end[i] - begin, kind = d.kind[i];
  const subject = track.form === 0 ? d.who[i] : d.owner[i];
  const title = track.form === 2 ? `${KINDS[kind][0]}: ${text(d.text[i]) || label(subject)}` : `${label(subject)}: ${KINDS[kind][0]}`;
  const first = [['from', at(begin)], ['duration', long || track.form !== 2 ? duration(long) : 'none'], ['of', entityLink(subject, begin)]];
  const process = processAround(subject);
  if (process) first.push(['process', label(process)]);
  if (track.form === 0) {
    first.push(['on', track.name], ['executes', d.by[i] ? entityLink(d.by[i], begin) : '']);
  } else if (track.form === 2) {
    first.push(['begun by', d.by[i] ? entityLink(d.by[i], begin) : ''], [kind === LOCK_WAIT ? 'held by' : 'belongs to', d.who[i] ? label(d.who[i]) : '']);
  } else {
    const executes = kindOf(subject) === GOROUTINE ? 'thread' : 'executes';
    first.push(['reason', text(d.text[i])], [executes, d.who[i] ? entityLink(d.who[i], begin) : '']);
    const by = d.by[i];
    if (by) first.push([kindOf(by) === CPU ? 'on' : TAKEN.has(kind) ? 'CPU taken by' : 'woken by', kindOf(by) === CPU ? label(by) : entityLink(by, begin)]);
    const ended = nextWaker(track, d, i);
    if (ended) first.push(['ended by', entityLink(ended, d.end[i])]);
  }
  const columns = el('div', { class: 'columns' }, el('div', {}, el('h3', {}, title), pairs(first)));
  const stack = d.stack[i] && data.stacks[d.stack[i] - 1];
  if (stack) {
    const list = el('ol', { class: 'stack', start: 0 });
    for (const [name, file, line] of stack) {
      list.append(el('li', {}, text(name) || '?', file ? el('span', { class: 'dim' }, `  ${text(file)}${line ? ':' + line : ''}`) : null));
    }
    columns.append(el('div', {}, el('h3', {}, 'stack'), list));
  }
  const known = data.attributes.filter(([id]) => process && processOf(id) === processOf(process));
  if (known.length) columns.append(el('div', {}, el('h3', {}, 'process'), pairs(known.map(([, name, value]) => [name, value]))));
  panel.append(columns);
}

/** The use of an item in the sums of its lane. */
function useOf(track, d, i) {
  if (track.form === 0) return label(d.who[i]);
  const kind = KINDS[d.kind[i]][0], executes = [THREAD, PROC].includes(kindOf(d.owner[i])) && track.form === 1;
  const words = text(d.text[i]) || (executes ? label(d.who[i]) : '');
  return words ? `${kind}: ${words}` : kind;
}

/** A lane: sums by use, and its largest items. Of a counter its values. */
function showLane(panel, track) {
  const d = items(track), columns = el('div', { class: 'columns' });
  panel.append(el('h3', {}, `${track.name}: ${count(d.n)} ${track.form === 3 ? 'value' : 'interval'}${d.n === 1 ? '' : 's'}`), columns);
  if (track.form === 3) {
    let least = Infinity, greatest = -Infinity, sum = 0, time = 0;
    for (let i = 0; i < d.n; i++) {
      least = Math.min(least, d.value[i]);
      greatest = Math.max(greatest, d.value[i]);
      sum += d.value[i] * (d.end[i] - d.begin[i]);
      time += d.end[i] - d.begin[i];
    }
    const mean = time > 0 ? count(sum / time) : null;
    columns.append(pairs(d.n ? [['least', count(least)], ['greatest', count(greatest)], ['mean over time', mean]] : []));
    return;
  }
  const uses = new Map(), SHOWN = 10, largest = [];
  const long = i => d.end[i] - d.begin[i];
  let total = 0;
  for (let i = 0; i < d.n; i++) {
    const name = useOf(track, d, i), use = uses.get(name) || { name, sum: 0, count: 0, longest: 0 };
    uses.set(name, use);
    use.sum += long(i);
    use.count++;
    use.longest = Math.max(use.longest, long(i));
    total += long(i);
    if (largest.length < SHOWN || long(i) > long(largest[SHOWN - 1])) {
      let place = largest.length;
      while (place > 0 && long(largest[place - 1]) < long(i)) place--;
      largest.splice(place, 0, i);
      largest.length = Math.min(largest.length, SHOWN);
    }
  }
  const table = (names, rows) => {
    const table = el('table', {}, el('tr', {}, ...names.map((name, i) => el('th', { class: i ? '' : 'text' }, name))));
    for (const [first, ...rest] of rows) table.append(el('tr', { class: 'row' }, el('td', { class: 'text' }, first), ...rest.map(cell => el('td', {}, cell))));
    return table;
  };
  const sorted = [...uses.values()].sort((a, b) => b.sum - a.sum), rest = sorted.slice(SHOWN);
  const row = ({ name, sum, count: n, longest }) => [name, duration(sum), total ? (sum / total * 100).toFixed(1) + ' %' : '', count(n), duration(longest)];
  const rows = sorted.slice(0, SHOWN).map(row);
  if (rest.length) {
    rows.push(row(rest.reduce((all, use) => ({ ...all, sum: all.sum + use.sum, count: all.count + use.count, longest: Math.max(all.longest, use.longest) }), { name: `${count(rest.length)} more`, sum: 0, count: 0, longest: 0 })));
  }
  const link = i => el('button', { class: 'link', onclick: () => select(track, i, true) }, useOf(track, d, i));
  columns.append(
    el('div', {}, el('h3', {}, 'sums'), table(['use', 'sum', 'share', 'number', 'longest'], rows)),
    el('div', {}, el('h3', {}, 'largest'), table(['interval', 'from', 'duration'], largest.map(i => [link(i), at(d.begin[i]), duration(long(i))]))),
  );
}

/** The process that an entity is, or that it is in. */
function processAround(id) {
  if (kindOf(id) === PROCESS) return id;
  const parent = id > RESERVED ? entity(id)[3] : 0;
  return kindOf(parent) === PROCESS ? parent : 0;
}

/** Who ended a wait: the waker of the next item. */
function nextWaker(track, d, i) {
  const waits = [3, 4, 11].includes(d.kind[i]);
  return waits && i + 1 < d.n && d.owner[i + 1] === d.owner[i] && d.begin[i + 1] === d.end[i] && kindOf(d.by[i + 1]) !== CPU && !TAKEN.has(d.kind[i + 1]) ? d.by[i + 1] : 0;
}

function showLegend(panel) {
  explained = used.size;
  const legend = el('div', { class: 'legend' });
  KINDS.forEach(([name], kind) => {
    if (used.has(kind) && !NAMED.has(kind)) legend.append(el('span', {}, el('i', { style: { background: theme.kinds[kind] } }), name));
  });
  const keys = [['wheel', 'w', 's', 'zoom'], ['drag', 'a', 'd', 'move'], ['Shift + wheel', 'scroll'], ['click', 'details of an interval, or of a lane by its name'], ['f', 'fit the selection'], ['0', 'whole timeline'], ['/', 'search'], ['Enter', 'in the search: next match'], [',', '.', 'previous, next'], ['j', 'k', 'next row, row before'], ['Enter', 'fold the group, or sum the lane, of the row']];
  const help = el('div', { class: 'legend', style: { marginTop: '10px' } });
  for (const list of keys) {
    const span = el('span');
    list.slice(0, -1).forEach(key => span.append(el('kbd', {}, key), ' '));
    span.append(list[list.length - 1]);
    help.append(span);
  }
  panel.append(el('h3', {}, 'Colours and keys'), legend, help);
}

// ---- the pointer ----
function hit(x, y) {
  if (y < plotTop()) return null;
  const inside = y - plotTop() + view.y;
  const row = rows.find(row => inside >= row.y && inside < row.y + row.height);
  if (!row || !row.track || x < GUTTER) return row ? { row } : null;
  const d = items(row.track), slack = 3 / scale(), time = toTime(x);
  let best = -1, distance = slack;
  for (let i = Math.max(0, firstAfter(d, time - slack) - 1); i < d.n && d.begin[i] <= time + slack; i++) {
    const away = time < d.begin[i] ? d.begin[i] - time : time > d.end[i] ? time - d.end[i] : 0;
    if (away < distance || (away === 0 && best < 0)) { best = i; distance = away; }
    if (away === 0 && d.end[i] > d.begin[i]) break;
  }
  return { row, index: best };
}

function zoom(factor, x) {
  const time = toTime(Math.max(x, GUTTER));
  // The time under the pointer stays there, also at the limit.
  factor = Math.max(factor, least() / (view.t1 - view.t0));
  [view.t0, view.t1] = [time - (time - view.t0) * factor, time + (view.t1 - time) * factor];
  draw();
}
function pan(part) {
  const by = (view.t1 - view.t0) * part;
  view.t0 += by;
  view.t1 += by;
  draw();
}
function whole() {
  const margin = (data.nanos || 1) * 0.01;
  [view.t0, view.t1] = [-margin, (data.nanos || 1) + margin];
  draw();
}
function fitSelection() {
  let begin, end;
  if (selection) { const d = items(selection.track); [begin, end] = [d.begin[selection.index], d.end[selection.index]]; }
  else if (path) [begin, end] = [path.begin, path.begin + path.nanos];
  else return whole();
  const margin = Math.max((end - begin) * 0.15, 50);
  [view.t0, view.t1] = [begin - margin, end + margin];
  draw();
}

const moved = e => {
  const box = canvas.getBoundingClientRect();
  pointer = { x: e.clientX - box.left, y: e.clientY - box.top };
  return pointer;
};

canvas.addEventListener('wheel', e => {
  e.preventDefault();
  const { x } = moved(e), unit = e.deltaMode ? 30 : 1;
  if (e.shiftKey || x < GUTTER) view.y += (e.deltaY || e.deltaX) * unit;
  else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) return pan(e.deltaX * unit / plotWidth());
  else return zoom(Math.exp(Math.max(-200, Math.min(200, e.deltaY * unit)) * 0.0022), x);
  draw();
}, { passive: false });

let drag = null;
/** Where pointers are down, by their ids: two of them zoom. */
const pointers = new Map();
function endDrag() {
  drag = null;
  canvas.classList.remove('drag');
}
function endPointer(e) {
  pointers.delete(e.pointerId);
  endDrag();
}
const apart = () => {
  const [a, b] = [...pointers.values()];
  return Math.max(Math.abs(a.x - b.x), 10);
};
canvas.addEventListener('pointerdown', e => {
  if (e.button) return;
  const { x, y } = moved(e);
  canvas.setPointerCapture(e.pointerId);
  pointers.set(e.pointerId, { x, y });
  if (pointers.size > 1) return endDrag();
  drag = { x, y, t0: view.t0, t1: view.t1, top: view.y, moved: false, overview: y < OVERVIEW };
  if (drag.overview) jump(x);
});
canvas.addEventListener('pointermove', e => {
  const { x, y } = moved(e);
  // The end of a drag can be outside of the window.
  if (!e.buttons && pointers.has(e.pointerId)) endPointer(e);
  if (pointers.size === 2 && pointers.has(e.pointerId)) {
    const before = apart();
    pointers.set(e.pointerId, { x, y });
    const [a, b] = [...pointers.values()];
    return zoom(before / apart(), (a.x + b.x) / 2);
  }
  if (pointers.has(e.pointerId)) pointers.set(e.pointerId, { x, y });
  if (drag) {
    if (Math.abs(x - drag.x) + Math.abs(y - drag.y) > 3) drag.moved = true;
    if (!drag.moved) return;
    canvas.classList.add('drag');
    hover = null;
    $('tip').hidden = true;
    if (drag.overview) return jump(x);
    const by = (drag.x - x) / scale();
    [view.t0, view.t1] = [drag.t0 + by, drag.t1 + by];
    view.y = drag.top + drag.y - y;
    return draw();
  }
  hover = { x, y };
  showTip(x, y);
});
canvas.addEventListener('pointerup', e => {
  if (e.button) return;
  const { x, y } = moved(e), was = drag;
  endPointer(e);
  if (was && !was.moved && !was.overview) click(x, y);
});
canvas.addEventListener('pointerleave', () => {
  hover = null;
  $('tip').hidden = true;
});
for (const name of ['pointercancel', 'lostpointercapture']) canvas.addEventListener(name, endPointer);
canvas.addEventListener('dblclick', e => {
  const { x, y } = moved(e), found = hit(x, y);
  if (found && found.index >= 0) fitSelection();
});

function jump(x) {
  const middle = (x - GUTTER) / plotWidth() * data.nanos, half = (view.t1 - view.t0) / 2;
  [view.t0, view.t1] = [middle - half, middle + half];
  draw();
}

function click(x, y) {
  const found = hit(x, y);
  if (found) cursor = onRow(found.row);
  if (found && found.row.group) {
    found.row.group.open = !found.row.group.open;
    arrange();
    return draw();
  }
  if (found && found.row.path) {
    const time = toTime(x), index = path.pieces.findIndex(p => time >= p[0] && time < p[0] + p[1]);
    const place = index >= 0 && placeOf(path.pieces[index][2], time);
    if (place) select(place.track, place.index, true);
    return;
  }
  if (found && found.index >= 0) return select(found.row.track, found.index, false);
  selection = null;
  lane = found && found.row.track && x < GUTTER ? found.row.track : null;
  showDetails();
  draw();
}

function showTip(x, y) {
  const found = hit(x, y), tip = $('tip');
  if (found && found.row.group && x < GUTTER) tip.textContent = found.row.group.name;
  else if (found && found.row.track && x < GUTTER) tip.textContent = found.row.track.name;
  else if (found && found.index >= 0) {
    const { track } = found.row, d = items(track), i = found.index;
    if (track.form === 3) tip.textContent = `${track.name}: ${count(d.value[i])}`;
    else {
      const what = [itemLabel(track, d, i), track.form === 0 ? '' : KINDS[d.kind[i]][0]].filter(Boolean).join(' · ');
      tip.textContent = `${what} · ${duration(d.end[i] - d.begin[i])}`;
    }
  } else { tip.hidden = true; return; }
  tip.hidden = false;
  tip.style.left = Math.min(x + 14, size().w - tip.offsetWidth - 6) + 'px';
  tip.style.top = Math.min(y + 16, size().h - tip.offsetHeight - 6) + 'px';
}

// ---- search ----
function search(query) {
  query = query.trim().toLowerCase();
  if (!query) {
    matches = null;
    $('found').textContent = '';
    paintFlame();
    return draw();
  }
  const texts = new Uint8Array(data.texts.length + 1);
  data.texts.forEach((name, i) => { if (name.toLowerCase().includes(query)) texts[i + 1] = 1; });
  const entities = new Uint8Array(data.entities.length + RESERVED + 1);
  const exact = /^g?\d+$/.test(query);
  // thread 4 is not thread 42.
  const isIn = name => {
    const place = name.indexOf(query);
    return place >= 0 && !(/\d$/.test(query) && /^\d/.test(name.slice(place + query.length)));
  };
  data.entities.forEach((e, i) => {
    const id = i + RESERVED + 1;
    if (texts[e[2]]) entities[id] = 1;
    else if (exact ? ('' + e[1] === query || (e[0] === GOROUTINE && 'g' + e[1] === query)) : isIn(label(id).toLowerCase())) entities[id] = 1;
  });
  matches = { query, texts, entities, count: 0 };
  for (const track of data.tracks) {
    if (track.form === 3) continue;
    const d = items(track);
    for (let i = 0; i < d.n; i++) if (isMatch(track, d, i)) matches.count++;
  }
  const isInStacks = data.stacks.some(stack => stack.some(([name]) => texts[name])) || data.flames.some(tree => tree.nodes.some(([, name]) => texts[name]));
  $('found').textContent = matches.count ? count(matches.count) : isInStacks ? '0 intervals, in stacks' : 'nothing';
  if (!matches.count && !isInStacks) matches = null;
  paintFlame();
  draw();
}

function nextMatch(step) {
  if (!matches || !matches.count) return;
  const lanes = data.tracks.filter(t => t.form !== 3);
  let lane = selection ? lanes.indexOf(selection.track) : 0, i = selection ? selection.index : step > 0 ? -1 : 0;
  // Counters have no matches.
  if (lane < 0) [lane, i] = [0, step > 0 ? -1 : 0];
  for (let left = lanes.length; left >= 0; left--) {
    const d = items(lanes[lane]);
    for (i += step; i >= 0 && i < d.n; i += step) if (isMatch(lanes[lane], d, i)) return select(lanes[lane], i, true);
    lane = (lane + step + lanes.length) % lanes.length;
    i = step > 0 ? -1 : items(lanes[lane]).n;
  }
}

function neighbour(step) {
  if (!selection) {
    // From the row, the first or last one in view.
    const row = cursorRow(), track = row && row.track;
    if (!track || !track.count) return;
    const d = items(track), after = firstAfter(d, step > 0 ? view.t0 : view.t1);
    return select(track, Math.max(0, Math.min(d.n - 1, step > 0 ? after : after - 1)), true);
  }
  const index = selection.index + step;
  if (index >= 0 && index < items(selection.track).n) select(selection.track, index, true);
}

let typing = 0;
$('search').addEventListener('input', () => { clearTimeout(typing); typing = setTimeout(() => search($('search').value), 120); });
$('search').addEventListener('keydown', e => {
  if (e.key === 'Enter') {
    clearTimeout(typing);
    if (!matches || matches.query !== $('search').value.trim().toLowerCase()) search($('search').value);
    // The next Enter is in the search, too.
    if (!matches || matches.count) show('timeline', true);
    nextMatch(e.shiftKey ? -1 : 1);
  } else if (e.key === 'Escape') {
    $('search').value = '';
    search('');
    canvas.focus();
  }
  e.stopPropagation();
});

document.addEventListener('keydown', e => {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  // They scroll the details.
  if (e.key.startsWith('Arrow') && $('details').contains(e.target)) return;
  if (e.key === 'Enter' && e.target !== canvas && e.target !== document.body) return;
  const x = pointer.x > GUTTER ? pointer.x : GUTTER + (size().w - GUTTER) / 2;
  const keys = {
    w: () => zoom(0.7, x), s: () => zoom(1 / 0.7, x), a: () => pan(-0.15), d: () => pan(0.15),
    ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15),
    ArrowUp: () => { view.y -= 60; draw(); }, ArrowDown: () => { view.y += 60; draw(); },
    f: fitSelection, 0: whole, j: () => moveCursor(1), k: () => moveCursor(-1), Enter: openCursor, ',': () => neighbour(-1), '.': () => neighbour(1),
    Escape: () => {
      selection = lane = path = cursor = null;
      $('search').value = '';
      search('');
      arrange();
      showDetails();
      draw();
    },
    '/': () => { $('search').focus(); },
  };
  const act = keys[e.key.length === 1 ? e.key.toLowerCase() : e.key];
  if (!act || ($('timeline').hidden && e.key !== '/')) return;
  e.preventDefault();
  act();
});

// ---- requests ----
function showRequests() {
  const list = $('list');
  list.replaceChildren(el('h2', { style: { marginTop: 0 } }, 'Longest requests'));
  if (data.pathsMissing) {
    list.append(el('p', { class: 'dim' }, `The critical paths of the ${count(data.pathsMissing)} longest requests are missing: they have too many events. triscope explain --between narrows the time.`));
  } else if (!data.paths.length) {
    list.append(el('p', { class: 'dim' }, 'No task, region or activity ended in the traces. In Go, runtime/trace.NewTask marks a request; in .NET, a pair of start and stop events.'));
  }
  data.paths.forEach((request, i) => {
    const bar = el('div', { class: 'bar' });
    for (const [what, nanos] of sums(request)) bar.append(el('i', { title: `${what} ${duration(nanos)}`, style: { width: nanos / Math.max(request.nanos, 1) * 100 + '%', background: WHAT[what] || WHAT.unknown } }));
    list.append(el('button', { class: 'request', 'data-request': i, onclick: () => showPath(i) }, el('b', {}, duration(request.nanos)), ' ', request.name, bar));
  });
  if (data.paths.length) showPath(0);
}
function sums(request) {
  const all = new Map();
  const add = (what, nanos) => all.set(what, (all.get(what) || 0) + nanos);
  for (const piece of request.pieces) add(piece[7], piece[1]);
  for (const [what, , nanos] of request.rest) add(what, nanos);
  return [...all].sort((a, b) => b[1] - a[1]);
}
function showPath(i) {
  const request = data.paths[i], place = $('path');
  for (const button of document.querySelectorAll('.request')) button.setAttribute('aria-pressed', button.dataset.request === '' + i);
  const go = el('button', { style: { borderColor: 'var(--line)' }, onclick: () => { path = request; selection = lane = null; arrange(); view.y = 0; fitSelection(); show('timeline'); showDetails(); } }, 'Show on the timeline');
  const totals = el('p', { class: 'legend' });
  for (const [what, nanos] of sums(request)) totals.append(el('span', {}, el('i', { style: { background: WHAT[what] || WHAT.unknown } }), `${what.replace(/_/g, ' ')} ${duration(nanos)}`));
  const table = el('table');
  table.append(el('tr', {}, ...['at', 'duration', 'share'].map(c => el('th', {}, c)), el('th', { class: 'text' }, 'who'), el('th', { class: 'text' }, 'what')));
  let short = 0, shorts = 0;
  const flush = () => {
    if (shorts) table.append(el('tr', {}, el('td'), el('td', {}, duration(short)), el('td'), el('td', { class: 'text dim' }, `${shorts} short piece${shorts === 1 ? '' : 's'}`), el('td')));
    short = shorts = 0;
  };
  for (const [begin, nanos, who, depth, waiter, context, , what, words, during, owner] of request.pieces) {
    if (nanos < request.nanos / 1000) { short += nanos; shorts++; continue; }
    flush();
    const name = el('td', { class: 'text', style: { paddingLeft: 10 + 16 * Math.min(depth, 12) + 'px', borderLeft: `4px solid ${WHAT[what] || WHAT.unknown}` } }, label(who));
    const notes = [during && `[${during}]`, waiter && `${label(waiter)} ${owner ? `waited for a lock held by ${label(owner)}` : 'waits'}`, context && `for another task: ${label(context)}`].filter(Boolean).join('; ');
    table.append(el('tr', { class: 'row' }, el('td', {}, duration(begin - request.begin)), el('td', {}, duration(nanos)), el('td', {}, (nanos / request.nanos * 100).toFixed(1) + ' %'), name, el('td', { class: 'wide' }, words, notes ? el('span', { class: 'dim' }, '  ' + notes) : null)));
  }
  flush();
  const [missing, rest] = request.rest.reduce(([n, sum], [, pieces, nanos]) => [n + pieces, sum + nanos], [0, 0]);
  const note = missing ? el('p', { class: 'dim' }, `The ${count(missing)} shortest pieces, ${duration(rest)} together, are in the sums only. triscope explain --path prints all.`) : null;
  place.replaceChildren(...[el('h2', { style: { marginTop: 0 } }, `${request.name}: ${duration(request.nanos)} at ${at(request.begin)}`), go, totals, note, table].filter(Boolean));
}

// ---- flame graphs ----
let flame = null;
function showFlames() {
  const trees = $('trees');
  trees.replaceChildren();
  if (!data.flames.length) {
    trees.append(el('p', { class: 'dim' }, 'The traces have no samples with stacks.'));
    return;
  }
  // Those of one name are side by side, in the order in which they are there.
  const all = data.flames.map((tree, i) => ({ ...tree, i, first: data.flames.findIndex(other => other.name === tree.name) }));
  all.sort((a, b) => a.first - b.first || a.i - b.i);
  for (const { name, process, i } of all) trees.append(el('button', { 'data-tree': i, onclick: () => chooseTree(i) }, `${name}${process ? ', ' + label(process) : ''}`));
  if (!flame) return chooseTree(all[0].i);
  markTree();
  paintFlame();
}
/** Marks the flame graph that is shown. */
function markTree() {
  for (const button of $('trees').children) button.setAttribute('aria-pressed', button.dataset.tree === '' + flame.tree);
}
function chooseTree(i) {
  const { nodes, unit } = data.flames[i];
  const all = nodes.map(([parent, name, own], id) => ({ id, parent, name, own, total: own, children: [], depth: 0 }));
  for (let id = all.length - 1; id > 0; id--) all[all[id].parent].total += all[id].total;
  for (const node of all.slice(1)) { node.depth = all[node.parent].depth + 1; all[node.parent].children.push(node); }
  for (const node of all) node.children.sort((a, b) => b.total - a.total);
  flame = { all, unit, top: all[0], tree: i, boxes: [] };
  markTree();
  paintFlame();
}
function paintFlame() {
  if (!flame || $('flames').hidden) return;
  const canvas = $('flame'), height = 19, highest = 16000;
  flame.boxes = [];
  let deepest = 0;
  // Stacks can be deeper than the calls of a browser.
  const open = [{ node: flame.top, x: 0, width: canvas.clientWidth, level: 0 }];
  while (open.length) {
    const { node, x, width, level } = open.pop();
    deepest = Math.max(deepest, level);
    flame.boxes.push({ node, x, y: level * height, width });
    const parts = [];
    let left = x;
    for (const child of node.children) {
      const part = width * child.total / Math.max(node.total, 1);
      if (part < 0.6) break; // the others are not wider
      parts.push({ node: child, x: left, width: part, level: level + 1 });
      left += part;
    }
    open.push(...parts.reverse());
  }
  // The section scrolls. A browser draws nothing on a canvas that is too high.
  canvas.style.minHeight = Math.min((deepest + 1) * height, highest) + 'px';
  const { g } = prepare(canvas);
  for (const { node, x, y, width } of flame.boxes) {
    const name = node.id ? text(node.name) : 'all';
    const color = matches && matches.texts[node.name] ? rgb(theme.accent) : flameColor(name);
    g.fillStyle = `rgb(${color})`;
    g.fillRect(x, y, Math.max(0.6, width - 0.8), height - 1);
    const shown = fit(g, name, width - 8);
    if (shown) { g.fillStyle = ink(color); g.fillText(shown, x + 4, y + height / 2); }
    if (node === flame.at) {
      g.strokeStyle = theme.select;
      g.strokeRect(x + 1.5, y + 1.5, Math.max(1, width - 3.8), height - 4);
    }
  }
}
const boxAt = e => {
  const box = $('flame').getBoundingClientRect(), x = e.clientX - box.left, y = e.clientY - box.top;
  return flame && flame.boxes.find(b => x >= b.x && x < b.x + b.width && y >= b.y && y < b.y + 19);
};
const amount = n => flame.unit === 'ns' ? duration(n) : `${count(n)} ${flame.unit}`;
const frameWords = node => `${node.id ? text(node.name) : 'all'}: ${amount(node.total)}, ${(node.total / Math.max(flame.all[0].total, 1) * 100).toFixed(1)} %, own ${amount(node.own)}`;
function zoomFrame(node) {
  flame.top = node === flame.top ? flame.all[0] : node;
  paintFlame();
}
$('flame').addEventListener('mousemove', e => {
  const found = boxAt(e);
  $('frame').textContent = found ? frameWords(found.node) : '';
});
$('flame').addEventListener('click', e => {
  const found = boxAt(e);
  if (found) zoomFrame(found.node);
});
/** The frame that a key leads to: a callee, the caller, or one beside it. */
function frameAt(key, { node, x, y }) {
  const boxes = flame.boxes, row = boxes.filter(box => box.y === y);
  return {
    ArrowDown: () => boxes.find(box => box.node === node.children[0]),
    ArrowUp: () => node === flame.top ? undefined : boxes.find(box => box.node === flame.all[node.parent]),
    ArrowLeft: () => row.findLast(box => box.x < x),
    ArrowRight: () => row.find(box => box.x > x),
  }[key]();
}
$('flame').addEventListener('keydown', e => {
  if (!flame || e.ctrlKey || e.metaKey || e.altKey) return;
  const now = flame.boxes.find(box => box.node === flame.at);
  if (e.key === 'Enter' || e.key === ' ') zoomFrame(flame.at || flame.top);
  else if (e.key === 'Escape') zoomFrame(flame.top);
  else if (e.key.startsWith('Arrow')) {
    const box = (now ? frameAt(e.key, now) : flame.boxes[0]) || now, section = $('flames');
    flame.at = box.node;
    const top = $('flame').offsetTop + box.y, room = section.clientHeight - 60;
    section.scrollTop = Math.min(top, Math.max(section.scrollTop, top - room));
    paintFlame();
    $('frame').textContent = frameWords(box.node);
  } else return;
  e.preventDefault();
  e.stopPropagation();
});

// ---- tables ----
function showReport() {
  const place = $('report');
  if (place.childElementCount) return;
  for (const { title, note, columns, rows, more } of data.tables) {
    const table = el('table'), isText = i => rows.every(row => typeof row[i] === 'string');
    const fill = list => {
      table.querySelectorAll('tr.row').forEach(row => row.remove());
      for (const row of list) table.append(el('tr', { class: 'row' }, ...row.map(cell => typeof cell === 'string' ? el('td', { class: 'text', title: cell }, cell) : el('td', {}, !Array.isArray(cell) ? count(cell) : cell.length > 1 ? at(cell[0]) : duration(cell[0])))));
    };
    // A text among numbers is last.
    const number = cell => typeof cell === 'string' ? -Infinity : Array.isArray(cell) ? cell[0] : cell;
    const order = i => isText(i) ? (a, b) => a[i].localeCompare(b[i]) : (a, b) => (number(b[i]) > number(a[i])) - (number(b[i]) < number(a[i]));
    const heads = columns.map((name, i) => el('th', { class: isText(i) ? 'text' : '', scope: 'col', tabindex: 0, onclick: () => sort(i), onkeydown: e => {
      if (e.key !== 'Enter' && e.key !== ' ') return;
      e.preventDefault();
      sort(i);
    } }, name));
    const sort = i => {
      heads.forEach((head, at) => head.setAttribute('aria-sort', at !== i ? 'none' : isText(i) ? 'ascending' : 'descending'));
      fill([...rows].sort(order(i)));
    };
    table.append(el('tr', {}, ...heads));
    fill(rows);
    place.append(el('h2', {}, title), note ? el('p', { class: 'dim' }, note) : '', table, more ? el('p', { class: 'dim' }, `${count(more)} more: triscope report --all --json has all`) : '');
  }
}

function showLosses() {
  const place = $('losses');
  place.replaceChildren(el('h2', { style: { marginTop: 0 } }, 'What is missing'));
  const table = el('table');
  for (const [what, times, n, unit] of data.losses.kinds) table.append(el('tr', {}, el('td', { class: 'text' }, what), el('td', {}, `${count(times)} times`), el('td', {}, n ? `${count(n)} ${unit}` : '')));
  for (const [n, what] of [[data.dropped, `intervals above the limit of the page are not on it: those that end from ${at(data.missingSince)} on, where lanes are shaded`], [data.folded, 'goroutines, threads or spans above the limit of lanes have no lane'], [data.summarized, 'intervals of other processes have no lane: the lanes of the CPUs show when they ran'], [data.valuesOmitted, 'values of counters are not finite and have no bar'], [data.stacksCut, 'stacks have only their outermost frames in the flame graphs: there are too many'], [data.cut, 'intervals overlapped the one before on their lane and were cut']]) {
    if (n) table.append(el('tr', {}, el('td', { class: 'text' }, what), el('td', {}, count(n)), el('td')));
  }
  const isKnown = !table.childElementCount && !data.notes.length;
  place.append(isKnown ? el('p', {}, 'Nothing: no source reported a loss.') : table, ...data.notes.map(note => el('p', {}, note)));
  const listed = data.losses.all.slice(0, 500), more = lossCount() - listed.length;
  for (const [begin, end, what, id, n, unit] of listed) {
    place.append(el('p', {}, el('button', { class: 'link', onclick: () => { const m = Math.max(end - begin, 1000); [view.t0, view.t1] = [begin - m, end + m]; show('timeline'); draw(); } }, at(begin)), ` ${what}${id ? ', ' + label(id) : ''}${n ? `, ${count(n)} ${unit}` : ''}, within ${duration(end - begin)}`));
  }
  if (more > 0) place.append(el('p', { class: 'dim' }, `${count(more)} more, not listed`));
}
const lossCount = () => data.losses.kinds.reduce((sum, kind) => sum + kind[1], 0);

// ---- tabs ----
const TABS = [['timeline', 'Timeline', () => draw()], ['requests', 'Requests', null], ['flames', 'Flame graph', showFlames], ['report', 'Report', showReport], ['losses', 'Losses', null]];
function show(id, keepsFocus) {
  for (const [tab, , act] of TABS) {
    $(tab).hidden = tab !== id;
    $('tab-' + tab).setAttribute('aria-selected', tab === id);
    // Tab moves to the selected one, arrows to the others.
    $('tab-' + tab).tabIndex = tab === id ? 0 : -1;
    if (tab === id && act) act();
  }
  // Keys need no focus; without one there is no outline at the start.
  if (id === 'timeline' && !keepsFocus) canvas.focus();
}

async function start() {
  await load();
  document.title = data.title;
  $('title').textContent = data.title;
  $('summary').textContent = `${duration(data.nanos)} · ${count(data.items)} intervals`;
  for (const [id, name] of TABS) $('tabs').append(el('button', { id: 'tab-' + id, role: 'tab', 'aria-controls': id, onclick: () => show(id) }, name));
  $('tabs').addEventListener('keydown', e => {
    const at = TABS.findIndex(([id]) => e.target.id === 'tab-' + id), n = TABS.length;
    const next = { ArrowLeft: at + n - 1, ArrowRight: at + 1, Home: 0, End: n - 1 }[e.key];
    if (at < 0 || next === undefined || e.ctrlKey || e.metaKey || e.altKey) return;
    const [id] = TABS[next % n];
    show(id);
    $('tab-' + id).focus();
    e.preventDefault();
    // They move the timeline elsewhere.
    e.stopPropagation();
  });
  const lost = lossCount();
  if (lost || data.dropped || data.folded || data.stacksCut) {
    $('warning').hidden = false;
    const parts = [];
    if (lost) parts.push(`${count(lost)} ${lost === 1 ? 'loss' : 'losses'}`);
    if (data.dropped) parts.push(`intervals are missing from ${at(data.missingSince)} on`);
    $('warning').textContent = '⚠ ' + (parts.join(', ') || 'not everything is shown');
    $('warning').addEventListener('click', () => show('losses'));
  }
  $('theme').addEventListener('click', () => { chooseTheme(!theme.dark); showDetails(); paintFlame(); });
  const dark = matchMedia('(prefers-color-scheme: dark)');
  dark.addEventListener('change', () => { chooseTheme(dark.matches); showDetails(); paintFlame(); });
  arrange();
  [view.t0, view.t1] = [-data.nanos * 0.01, data.nanos * 1.01];
  chooseTheme(dark.matches);
  show('timeline', true);
  paint();
  showDetails();
  showRequests();
  showLosses();
  new ResizeObserver(() => { draw(); paintFlame(); }).observe(document.querySelector('main'));
  new ResizeObserver(draw).observe(canvas);
}

// For tests and scripts.
window.triscope = {
  ready: start().catch(error => {
    $('failure').hidden = false;
    $('failure').textContent = `The timeline cannot be shown: ${error}`;
    throw error;
  }),
  get data() { return data; },
  get view() { return { ...view }; },
  get flame() { return flame && { top: flame.top.id, at: flame.at ? flame.at.id : -1 }; },
  get rows() { return rows.map(r => ({ name: r.track ? r.track.name : r.group ? r.group.name : 'critical path', y: plotTop() + r.y - view.y, height: r.height, isGroup: !!r.group, form: r.track ? r.track.form : -1 })); },
  get selection() { return selection && { track: selection.track.name, index: selection.index, text: $('details').textContent, waker: selection.track.form === 3 ? '' : label(wakerOf(selection.track, items(selection.track), selection.index)) }; },
  select: (id, index) => select(data.tracks[id], index, true),
  get lane() { return lane && { name: lane.name, text: $('details').textContent, links: $('details').querySelectorAll('.link').length }; },
  get matches() { return matches ? matches.count : 0; },
  /** Colours behind texts on the canvases, each with that of the text. */
  get fills() {
    const flames = Array.from({ length: 2000 }, (_, i) => flameColor('' + i));
    const others = [...PALETTE, ...Object.values(WHAT), theme.accent].map(rgb);
    const names = [[rgb(theme.back), theme.dim], [rgb(theme.back), theme.accent], [rgb(theme.panel), theme.dim], [rgb(theme.panel), theme.text]];
    return [...[...flames, ...others].map(color => [color, ink(color)]), ...[...theme.fills, theme.otherFill].map(f => [f.rgb, f.ink]), ...names];
  },
  items: id => items(data.tracks[id]),
  kinds: KINDS.map(([name]) => name),
  fit, label, paint, show, toX,
  openAll() { data.groups.forEach(group => { group.open = true; }); arrange(); paint(); },
};
})();
