'use strict';
// Reads dropped traces with the program, in a worker, and shows what it makes of them.

const PERFETTO = 'https://ui.perfetto.dev';
/** Milliseconds between two questions whether the Perfetto UI is loaded. */
const PING_INTERVAL = 50;
const MESSAGE_PREFIX = 'triscope: ';

const element = id => document.getElementById(id);

/** The content of a gzip file. */
const inflated = blob => new Response(blob.stream().pipeThrough(new DecompressionStream('gzip')));

/** The compiled program. It is in the page, compressed with gzip. */
const program = (async () => {
  const text = element('program').textContent;
  const bytes = Uint8Array.from(atob(text), character => character.charCodeAt(0));
  element('program').remove();
  return WebAssembly.compile(await inflated(new Blob([bytes])).arrayBuffer());
})();
const workerUrl = URL.createObjectURL(new Blob([element('worker').textContent], { type: 'text/javascript' }));

class Cancelled extends Error {}

/** One run of the program. `result` is what it printed and wrote. */
class Run {
  constructor(args, files, onProgress) {
    this.worker = new Worker(workerUrl);
    this.result = new Promise((resolve, reject) => {
      this.reject = reject;
      this.worker.onmessage = ({ data }) => {
        if (data.progress) { onProgress(data.progress); return; }
        resolve({ ...data.done, outputs: new Map(data.done.outputs) });
        this.worker.terminate();
      };
      this.worker.onerror = event => this.fail(new Error(event.message || 'the worker failed'));
    });
    program.then(module => this.worker.postMessage({ module, args: ['triscope', ...args], files }))
      .catch(reason => this.fail(reason));
  }
  fail(reason) {
    this.worker.terminate();
    this.reject(reason);
  }
  cancel() {
    this.fail(new Cancelled());
  }
}

/** The views of the traces: the command of each, and the file that it writes. */
const VIEWS = {
  report: { step: 'Reading', output: 'out/report.html', args: ['report', '--html'] },
  summary: { step: 'Analysing', output: 'out/summary.html', args: ['go', 'summary', '--html'] },
  timeline: { step: 'Converting', output: 'out/timeline.pftrace', args: ['convert', '--uncompressed', '-o'] },
};

const page = { files: [], recovers: false, results: new Map(), errors: new Map(), run: null, shown: 'report', url: null, history: [] };

/** A name for each file: two can have the same one. */
function named(files) {
  const names = new Map();
  for (const file of files) {
    let name = file.name === '-' || file.name.startsWith('out/') ? `_${file.name}` : file.name;
    for (let number = 2; names.has(name); number++) name = `${number} ${file.name}`;
    names.set(name, file);
  }
  return [...names];
}

/** Whether this can be a Go trace; what is compressed with zstd always can. */
async function mayBeGo(file) {
  const head = async blob => new Uint8Array(await blob.slice(0, 5).arrayBuffer());
  let bytes = await head(file);
  if (bytes[0] === 0x28 && bytes[1] === 0xb5) return true;
  if (bytes[0] === 0x1f && bytes[1] === 0x8b) {
    const reader = file.stream().pipeThrough(new DecompressionStream('gzip')).getReader();
    const { value } = await reader.read().catch(() => ({}));
    reader.cancel().catch(() => {});
    bytes = await head(new Blob([value ?? '']));
  }
  return new TextDecoder().decode(bytes) === 'go 1.';
}

function state(name) {
  document.body.dataset.state = name;
  element('start').hidden = name !== 'empty' && name !== 'failed';
  element('working').hidden = name !== 'working';
  element('result').hidden = !page.results.has('report');
  element('other').hidden = name === 'empty';
  for (const id of ['perfetto', 'save-timeline', 'save-view', 'recover', 'tab-report', 'tab-summary']) {
    element(id).disabled = name === 'working';
  }
}

function messages(lines) {
  element('list').replaceChildren(...lines.map(line => {
    const item = document.createElement('li');
    item.textContent = line;
    return item;
  }));
  element('messages').hidden = lines.length === 0;
  element('recover').hidden = page.recovers || !lines.some(line => line.includes('--recover'));
}

/** Runs the command of a view, unless its result is there. `null` if it was cancelled, or other files are open. */
async function result(view) {
  const results = page.results;
  if (results.has(view)) return results.get(view);
  const files = named(page.files);
  const { step, output: name, args: command } = VIEWS[view];
  const args = [...command, name, '--', ...files.map(([file]) => file)];
  if (page.recovers) args.splice(view === 'summary' ? 2 : 1, 0, '--recover');
  progress(step, null);
  state('working');
  element('cancel').focus();
  const run = new Run(args, files, read => progress(step, read));
  page.run = run;
  let done;
  try {
    done = await run.result;
  } catch (reason) {
    if (reason instanceof Cancelled) return null;
    done = { failure: `${reason.message ?? reason}`, messages: '', outputs: new Map() };
  } finally {
    // It can be that of other files by now.
    if (page.run === run) page.run = null;
  }
  if (page.results !== results) return null;
  const { outputs, ...rest } = done;
  page.history.push({ view, ...rest });
  const lines = done.messages.split('\n').filter(line => line.startsWith(MESSAGE_PREFIX));
  const errors = lines.map(line => line.slice(MESSAGE_PREFIX.length));
  if (done.failure) errors.push(`The traces could not be read: ${done.failure}`);
  messages(errors);
  const output = done.outputs.get(name);
  if (!output) return undefined;
  results.set(view, output);
  page.errors.set(view, errors);
  return output;
}

function progress(step, read) {
  element('step').textContent = read ? `${step} ${read.name}` : `${step}…`;
  const bar = element('progress');
  if (read && read.size > 0) bar.value = read.at / read.size; else bar.removeAttribute('value');
}

/** Reads these files, and shows the report. */
async function openTraces(files, recovers = false) {
  // What is dropped can be a text.
  if (files.length === 0) return;
  closeTraces();
  Object.assign(page, { files: [...files], recovers });
  element('names').textContent = page.files.map(file => file.name).join(', ');
  document.title = `${page.files[0].name} – triscope`;
  element('tab-summary').hidden = true;
  const opened = page.files;
  const isGo = opened.length === 1 && await mayBeGo(opened[0]).catch(() => false);
  if (page.files !== opened) return;
  element('tab-summary').hidden = !isGo;
  await show('report');
}

function closeTraces() {
  page.run?.cancel();
  Object.assign(page, { files: [], recovers: false, results: new Map(), errors: new Map(), run: null, shown: 'report' });
  if (page.url) URL.revokeObjectURL(page.url);
  page.url = null;
  element('view').replaceChildren();
  element('names').textContent = 'Go, .NET and perf traces as a timeline';
  document.title = 'triscope';
  messages([]);
  state('empty');
}

/** Shows a page that the program wrote. It runs without the rights of this one. */
async function show(view) {
  const files = page.files, output = await result(view);
  if (page.files !== files) return;
  if (!output) {
    ended(output);
    return;
  }
  page.shown = view;
  messages(page.errors.get(view));
  for (const tab of document.querySelectorAll('[role=tab]')) {
    const isShown = tab.id === `tab-${view}`;
    tab.setAttribute('aria-selected', isShown);
    tab.tabIndex = isShown ? 0 : -1;
  }
  element('view').setAttribute('aria-labelledby', `tab-${view}`);
  if (page.url) URL.revokeObjectURL(page.url);
  page.url = URL.createObjectURL(new Blob([output], { type: 'text/html' }));
  const frame = document.createElement('iframe');
  frame.title = element(`tab-${view}`).textContent;
  frame.setAttribute('sandbox', 'allow-scripts');
  frame.src = page.url;
  const loaded = new Promise(resolve => { frame.onload = resolve; });
  element('view').replaceChildren(frame);
  state('shown');
  await loaded;
  document.body.dataset.state = 'ready';
  element(`tab-${view}`).focus();
}

/** Nothing was written: the run was cancelled, or failed. */
function ended(output) {
  if (output === null) messages(['cancelled']);
  const wasShown = page.results.has('report');
  state(wasShown ? 'ready' : 'failed');
  if (!wasShown) element('files').focus();
}

function save(blob, name) {
  const link = document.createElement('a');
  const url = URL.createObjectURL(blob);
  Object.assign(link, { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** The name of the first trace without its endings. */
const stem = () => page.files[0].name.replace(/(\.(gz|zst|out|trace|nettrace|data))+$/, '') || 'trace';

/** The timeline, if there is one and no other files are open by then. */
async function converted() {
  const files = page.files, timeline = await result('timeline');
  if (page.files !== files) return null;
  if (!timeline) ended(timeline);
  return timeline;
}

async function saveTimeline() {
  const timeline = await converted();
  if (!timeline) return;
  state('ready');
  const name = `${stem()}.pftrace.gz`;
  const zipped = timeline.stream().pipeThrough(new CompressionStream('gzip'));
  try {
    save(await new Response(zipped).blob(), name);
  } catch (reason) {
    messages([`The timeline could not be saved: ${reason.message}`]);
  }
}

/** Hands the timeline over as https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui says. */
async function openInPerfetto() {
  // Only a click may open a window: it waits for the timeline.
  const perfetto = window.open(PERFETTO);
  if (!perfetto) {
    messages(['The browser did not open a window: allow it for this page, or download the timeline and open it at ui.perfetto.dev']);
    return;
  }
  const timeline = await converted();
  if (!timeline) {
    perfetto.close();
    return;
  }
  const [title, fileName] = [element('names').textContent, `${stem()}.pftrace`];
  state('ready');
  let buffer;
  try {
    buffer = await timeline.arrayBuffer();
  } catch (reason) {
    perfetto.close();
    messages([`The timeline could not be handed over: ${reason.message}`]);
    return;
  }
  const isLoaded = await new Promise(resolve => {
    const timer = setInterval(() => {
      if (perfetto.closed) answer(false); else perfetto.postMessage('PING', PERFETTO);
    }, PING_INTERVAL);
    const listener = event => {
      if (event.source === perfetto && event.origin === PERFETTO && event.data === 'PONG') answer(true);
    };
    const answer = loaded => {
      clearInterval(timer);
      removeEventListener('message', listener);
      resolve(loaded);
    };
    addEventListener('message', listener);
  });
  if (isLoaded) perfetto.postMessage({ perfetto: { buffer, title, fileName } }, PERFETTO, [buffer]);
}

element('files').onchange = event => {
  const files = [...event.target.files];
  event.target.value = '';
  openTraces(files);
};
element('other').onclick = () => { closeTraces(); element('files').focus(); };
element('cancel').onclick = () => page.run?.cancel();
element('recover').onclick = () => openTraces(page.files, true);
element('perfetto').onclick = openInPerfetto;
element('save-timeline').onclick = saveTimeline;
element('save-view').onclick = () => save(page.results.get(page.shown), `${stem()}-${page.shown}.html`);
for (const tab of document.querySelectorAll('[role=tab]')) tab.onclick = () => show(tab.id.replace('tab-', ''));
document.querySelector('[role=tablist]').onkeydown = event => {
  if (event.key !== 'ArrowLeft' && event.key !== 'ArrowRight') return;
  const tabs = [...document.querySelectorAll('[role=tab]:not([hidden])')];
  const next = (tabs.indexOf(event.target) + 1) % tabs.length;
  tabs[next].focus();
};
addEventListener('keydown', event => { if (event.key === 'Escape') page.run?.cancel(); });
addEventListener('dragover', event => {
  event.preventDefault();
  document.body.classList.add('dragging');
});
addEventListener('dragleave', () => document.body.classList.remove('dragging'));
addEventListener('drop', event => {
  event.preventDefault();
  document.body.classList.remove('dragging');
  openTraces(event.dataTransfer.files);
});

/** Fetches the traces of `triscope open`, which serves this page with their names, and nothing else. */
async function openServed(names) {
  element('policy').textContent = 'Its content security policy permits connections to the traces of triscope open only.';
  element('names').textContent = names.join(', ');
  const ended = new AbortController();
  const run = { cancel: () => ended.abort() };
  page.run = run;
  state('working');
  const files = [];
  try {
    for (const [number, name] of names.entries()) {
      progress(`Fetching ${name}`, null);
      const response = await fetch(`files/${number}`, { signal: ended.signal });
      if (!response.ok) throw new Error(response.statusText);
      files.push(new File([await response.blob()], name));
    }
  } catch (reason) {
    // Other files are open.
    if (page.run !== run) return;
    page.run = null;
    messages([ended.signal.aborted ? 'cancelled'
      : `The traces could not be fetched (${reason.message}): triscope open serves them once. Choose the files here.`]);
    state('failed');
    return;
  }
  if (page.run === run) await openTraces(files);
}

const servedNames = JSON.parse(element('served').textContent);
if (servedNames.length > 0) openServed(servedNames);
