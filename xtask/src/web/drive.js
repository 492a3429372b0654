'use strict';
// Drops files on the page, and compares what it makes of them with what the native program does.
// usage: node drive.js CHROMIUM OUT PAGE PLAN TRISCOPE
const { spawn } = require('child_process');
const crypto = require('crypto');
const fs = require('fs');
const http = require('http');
const path = require('path');
const { check, forbids, open, run } = require('./browser.js');

const [chromium, out, file, plan, triscope] = process.argv.slice(2);
const cases = JSON.parse(fs.readFileSync(plan));
const MAX_MEMORY = 200e6;
const PERFETTO = 'https://ui.perfetto.dev';
const WIDTHS = [1280, 400];

const digest = bytes => crypto.createHash('sha256').update(bytes).digest('hex');

async function main(browser) {
  const page = await open(browser, out);
  await page.send('Page.addScriptToEvaluateOnNewDocument', { source: `
    window.violations = [];
    addEventListener('securitypolicyviolation', event => violations.push(event.violatedDirective + ' ' + event.blockedURI));
    /** Resolves when the page is in one of these states. */
    window.until = (...states) => new Promise(resolve => {
      const look = () => states.includes(document.body.dataset.state) && (observer.disconnect(), resolve(document.body.dataset.state));
      const observer = new MutationObserver(look);
      observer.observe(document.body, { attributes: true });
      look();
    });
    /** The digest of a blob. */
    window.digest = async blob => [...new Uint8Array(await crypto.subtle.digest('SHA-256', await blob.arrayBuffer()))].map(byte => byte.toString(16).padStart(2, '0')).join('');
    window.messagesOf = () => [...document.querySelectorAll('#list li')].map(item => item.textContent);
  ` });
  await frames(browser, page);
  await page.dark(false);
  await page.load('file://' + path.resolve(file));
  /** From now on, `next` is the state after the next run. */
  const expect = () => page.eval("window.next = until('working').then(() => until('ready', 'failed')), 0");
  const give = async files => {
    const { result } = await page.send('Runtime.evaluate', { expression: "document.getElementById('files')" });
    await page.send('DOM.setFileInputFiles', { objectId: result.objectId, files });
  };
  /** Gives files to the page as its user does, and waits for the result. */
  const choose = async files => {
    await expect();
    await give(files);
    return page.eval('next');
  };
  const shots = async name => {
    await page.drawn();
    for (const width of WIDTHS) {
      await page.send('Emulation.setDeviceMetricsOverride', { width, height: 900, deviceScaleFactor: 1, mobile: false });
      const over = await page.eval('document.documentElement.scrollWidth - innerWidth');
      check(`${name} fits ${width} pixels`, over <= 0, over);
      for (const theme of ['light', 'dark']) {
        await page.dark(theme === 'dark');
        await page.drawn();
        await page.shot(`${name}-${width}-${theme}`);
      }
    }
    await page.dark(false);
    await page.send('Emulation.clearDeviceMetricsOverride');
  };
  await shots('empty');

  let peak = 0;
  for (const { kind, file, ...native } of cases) {
    const name = path.basename(file);
    await page.eval('closeTraces()');
    const state = await choose([file]);
    const report = await page.eval('({ ...page.history.at(-1), messages: messagesOf() })');
    check(`${name}: the program ends by itself`, !report.failure, report.failure);
    peak = Math.max(peak, report.memory);
    if (kind === 'bomb') {
      check(`${name} is refused`, report.status === 1 && report.messages.length > 0, report);
      console.log(`${name}: refused in ${(report.milliseconds / 1000).toFixed(1)} s and ${(report.memory / 1e6).toFixed(1)} MB: ${report.messages}`);
      continue;
    }
    check(`${name}: the errors of report`, JSON.stringify(report.messages) === JSON.stringify(native.report), [report.messages, native.report]);
    const hash = await page.eval("result('timeline').then(blob => blob ? digest(blob) : '')");
    const convert = await page.eval('({ ...page.history.at(-1), messages: messagesOf() })');
    const expected = native.timeline ? digest(fs.readFileSync(native.timeline)) : '';
    check(`${name}: the bytes of the timeline`, hash === expected, [hash, expected]);
    // A page has no files of the recorded machine: functions are addresses.
    const errors = native.convert.filter(text => !text.includes(' frames without a function: '));
    check(`${name}: the errors of convert`, JSON.stringify(convert.messages) === JSON.stringify(errors), [convert.messages, errors]);
    check(`${name} is shown`, (state === 'ready') === (await page.eval("page.results.has('report')")), state);
    peak = Math.max(peak, convert.memory);
    if (kind === 'large') {
      const seconds = convert.milliseconds / 1000, ratio = seconds / native.seconds;
      console.log(`${name}: converted in ${seconds.toFixed(2)} s, ${ratio.toFixed(2)} times the native ${native.seconds.toFixed(2)} s, in ${(convert.memory / 1e6).toFixed(1)} MB; report in ${(report.milliseconds / 1000).toFixed(2)} s and ${(report.memory / 1e6).toFixed(1)} MB`);
      check(`${name} in ${MAX_MEMORY / 1e6} MB`, convert.memory <= MAX_MEMORY, convert.memory);
    }
  }
  console.log(`${cases.length} files, at most ${(peak / 1e6).toFixed(1)} MB of memory`);
  check('the limit of memory', peak <= MAX_MEMORY, peak);
  check('names are no markup', await page.eval("document.querySelectorAll('img, b#owned').length === 0 && typeof owned === 'undefined'"));

  const shop = cases.find(({ file }) => path.basename(file) === 'shop.trace');
  Object.assign(page, { expect, give, choose, shots });
  await failures(page);
  await replaced(page, [shop.file, cases.find(({ file }) => path.basename(file) === 'changed-2-shop.trace').file]);
  await cancel(page, shop.file, cases.find(({ kind }) => kind === 'large').file);
  await keyboard(page, shop.file);
  await page.eval('closeTraces()');
  await choose([cases.find(({ file }) => path.basename(file) === 'scheduler.perf.data').file]);
  await shots('perf');
  await perfetto(page, shop);
  await isolated(page);
  await served(browser, shop);
}

/** Collects the errors of the pages that are shown in a frame. */
async function frames(browser, page) {
  const sessions = new Set(), ofWorkers = new Map(), waiting = [];
  page.frames = { seen: 0 };
  /** The next worker: `ended` resolves when it does. */
  page.worker = () => new Promise(resolve => waiting.push(resolve));
  /** Resolves when the page in the frame, if there is one, is drawn in the present size and theme. */
  page.drawn = async () => {
    const twice = 'new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))';
    const expression = `(window.triscope ? triscope.ready : Promise.resolve()).then(() => ${twice})`;
    await page.frame();
    for (const session of sessions) await browser.send('Runtime.evaluate', { expression, awaitPromise: true }, session).catch(() => {});
  };
  browser.listen(({ method, params, sessionId }) => {
    if (method === 'Target.attachedToTarget' && params.targetInfo.type === 'worker') {
      const worker = {};
      worker.ended = new Promise(resolve => ofWorkers.set(params.sessionId, resolve));
      waiting.splice(0).forEach(resolve => resolve(worker));
    }
    if (method === 'Target.detachedFromTarget') {
      sessions.delete(params.sessionId);
      ofWorkers.get(params.sessionId)?.();
    }
    if (method === 'Target.attachedToTarget' && params.targetInfo.type === 'iframe') {
      sessions.add(params.sessionId);
      page.frames.seen++;
      // The frame may be gone already.
      for (const domain of ['Runtime', 'Log']) browser.send(`${domain}.enable`, {}, params.sessionId).catch(() => {});
    }
    if (!sessions.has(sessionId)) return;
    if (method === 'Log.entryAdded' && params.entry.level === 'error') page.errors.push(params.entry.text);
    if (method === 'Runtime.exceptionThrown') page.errors.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
  });
  await page.send('Target.setAutoAttach', { autoAttach: true, waitForDebuggerOnStart: false, flatten: true });
}

/** A damaged trace is shown up to the damage, and after it on demand. */
async function failures(page) {
  const damaged = cases.find(({ file }) => path.basename(file) === 'changed-2-shop.trace');
  await page.eval('closeTraces()');
  await page.choose([damaged.file]);
  check('damage can be skipped', await page.eval("!document.getElementById('recover').hidden"));
  await page.shots('damaged');
  await page.expect();
  await page.eval("document.getElementById('recover').click()");
  await page.eval('next');
  const { status, messages } = await page.eval('page.history.at(-1)');
  check('the rest is read', status === 1 && messages.includes('bytes lost'), messages);
  await page.eval('closeTraces()');
  await page.choose([cases.find(({ file }) => path.basename(file) === 'text.trace').file]);
  check('an error leaves the page usable', await page.eval("document.activeElement.id === 'files'"));
  await page.shots('failed');
}

/** Files take the place of others that are fetched or read. The run of several begins at once. */
async function replaced(page, files) {
  await page.eval('closeTraces()');
  await page.eval(`(() => {
    const own = window.fetch;
    window.fetch = (_, { signal }) => new Promise((_, failed) => signal.addEventListener('abort', () => failed(signal.reason)));
    openServed(['served.trace']).then(() => { window.fetch = own; });
  })()`);
  const state = await page.choose(files);
  check('files take the place of those that are fetched', state === 'ready', [state, await page.eval('messagesOf()')]);
  const isKept = await page.eval(`(async () => {
    window.next = until('shown').then(() => until('ready'));
    const files = page.files;
    openTraces(files);
    openTraces(files);
    const { run } = page;
    await new Promise(done => setTimeout(done));
    return run !== null && page.run === run;
  })()`);
  check('a run can be cancelled that took the place of another', isKept);
  await page.eval('next');
}

/** A cancelled run ends with its worker, and the page can be used again. */
async function cancel(page, file, large) {
  await page.eval('closeTraces()');
  // The click comes before any message of the worker.
  await page.eval(`until('working').then(() => { window.worker = page.run.worker; document.getElementById('cancel').click(); }), 0`);
  await page.give([file]);
  await page.eval("until('failed')");
  check('a run is cancelled', await page.eval("messagesOf().join() === 'cancelled' && page.run === null && page.results.size === 0"));
  check('the next one is not', (await page.choose([file])) === 'ready');
  // In the middle of a run.
  await page.eval('closeTraces()');
  const worker = page.worker();
  await page.expect();
  await page.give([large]);
  const { ended } = await worker;
  await page.eval("document.getElementById('cancel').click()");
  check('a run is cancelled while it reads', (await page.eval('next')) === 'failed' && await page.eval("messagesOf().join() === 'cancelled'"));
  await ended;
}

/** Everything can be reached with the keyboard. */
async function keyboard(page, file) {
  await page.eval('closeTraces()');
  await page.choose([file]);
  await page.shots('report');
  // Not in the report: its timeline takes the focus when it is drawn, for its own keys.
  await page.expect();
  await page.eval("document.getElementById('tab-summary').click()");
  check('the other view is shown', (await page.eval('next')) === 'ready' && await page.eval("page.shown === 'summary'"));
  check('its tab has the focus', await page.eval("document.activeElement.id === 'tab-summary'"));
  await page.shots('summary');
  const reached = [];
  for (let i = 0; i < 3; i++) {
    await page.key('Tab', { code: 'Tab', windowsVirtualKeyCode: 9 });
    reached.push(await page.eval('document.activeElement.id'));
  }
  check('Tab reaches the actions', reached.join() === 'perfetto,save-timeline,save-view', reached);
  await page.eval("document.getElementById('tab-summary').focus()");
  await page.key('ArrowLeft', { code: 'ArrowLeft' });
  check('an arrow selects the other tab', await page.eval("document.activeElement.id === 'tab-report'"));
  await page.eval("window.next = until('shown').then(() => until('ready')), 0");
  await page.key('Enter', { code: 'Enter', windowsVirtualKeyCode: 13 });
  check('Enter shows it', (await page.eval('next')) === 'ready' && await page.eval("page.shown === 'report'"));
}

/** The hand-over, to a window in place of the Perfetto UI. */
async function perfetto(page, { file, timeline }) {
  await page.eval('closeTraces()');
  await page.choose([file]);
  check('the page has not replaced window.open', await page.eval("window.open.toString().includes('[native code]')"));
  const got = await page.eval(`(() => {
    const frame = document.createElement('iframe');
    document.body.append(frame);
    const other = frame.contentWindow, opened = [];
    window.open = url => (opened.push(url), other);
    const received = new Promise(resolve => {
      let pings = 0;
      other.postMessage = async (data, origin) => {
        if (data.perfetto) {
          const { buffer, title, fileName } = data.perfetto;
          frame.remove();
          resolve({ opened, origin, title, fileName, hash: await digest(new Blob([buffer])) });
        } else if (data === 'PING' && ++pings === 3) {
          // The first ones come before it is loaded. Others must not be taken for it.
          dispatchEvent(new MessageEvent('message', { data: 'PONG', origin: 'https://example.org', source: other }));
          dispatchEvent(new MessageEvent('message', { data: 'PONG', origin, source: window }));
          dispatchEvent(new MessageEvent('message', { data: 'PONG', origin, source: other }));
        }
      };
    });
    document.getElementById('perfetto').click();
    return received;
  })()`);
  check('Perfetto gets the timeline', got.hash === digest(fs.readFileSync(timeline)), got);
  check('with its name', got.title === 'shop.trace' && got.fileName === 'shop.pftrace', got);
  check('and nobody else', got.opened.join() === PERFETTO && got.origin === PERFETTO, got);
}

/** The page loads nothing, breaks no rule of its policy, and cannot. */
async function isolated(page) {
  check('no errors', page.errors.length === 0, page.errors);
  check('frames were seen', page.frames.seen > 0);
  const violations = await page.eval('violations');
  check('no violation of the policy', violations.length === 0, violations);
  const foreign = page.requests.filter(url => !url.startsWith('file://') && !url.startsWith('blob:') && !url.startsWith('data:'));
  check('no requests', foreign.length === 0, foreign);
  await forbids(page, url => [`new Promise(done => {
    const code = "fetch('${url}').then(() => postMessage(0), () => postMessage(1))";
    const worker = new Worker(URL.createObjectURL(new Blob([code])));
    worker.onmessage = event => done(event.data);
  })`]);
}

/** The page of `triscope open`: it has its traces, can reach nothing else, and the server ends. */
async function served(browser, { file: trace, timeline }) {
  const program = spawn(triscope, ['open', '--no-browser', '--page', path.resolve(file), trace], { stdio: ['ignore', 'ignore', 'pipe'] });
  try {
    await Promise.race([opened(browser, program, timeline), browser.died]);
  } finally {
    // It waits for a page that may never ask for the trace.
    program.kill();
  }
}

async function opened(browser, program, timeline) {
  const ended = new Promise(done => program.once('close', done));
  let said = '';
  const url = await new Promise((found, failed) => {
    program.stderr.on('data', text => {
      said += text;
      const address = /^open (http:\S+)/m.exec(said);
      if (address) found(address[1]);
    });
    program.once('error', failed);
    program.once('close', () => failed(new Error(`triscope open: ${said}`)));
  });
  const status = (address, headers = {}) => new Promise((done, failed) => {
    http.get(address, { headers, agent: false }, reply => { reply.resume(); done(reply.statusCode); }).on('error', failed);
  });
  check('another path is refused', await status(new URL('/', url)) === 404);
  check('another host is refused', await status(url, { host: 'example.org' }) === 403);
  const page = await open(browser, out);
  await page.send('Page.addScriptToEvaluateOnNewDocument', { source: `
    window.violations = [];
    addEventListener('securitypolicyviolation', event => violations.push(event.violatedDirective + ' ' + event.blockedURI));
  ` });
  await page.load(url);
  const state = await page.eval(`new Promise(done => {
    const look = () => ['ready', 'failed'].includes(document.body.dataset.state) && done(document.body.dataset.state);
    new MutationObserver(look).observe(document.body, { attributes: true });
    look();
  })`);
  check('the page of triscope open shows its trace', state === 'ready', await page.eval("document.getElementById('list').textContent"));
  check('its name is that of the file', await page.eval("document.getElementById('names').textContent") === 'shop.trace');
  const hash = await page.eval(`result('timeline').then(async blob =>
    [...new Uint8Array(await crypto.subtle.digest('SHA-256', await blob.arrayBuffer()))].map(byte => byte.toString(16).padStart(2, '0')).join(''))`);
  check('its timeline is that of the native program', hash === digest(fs.readFileSync(timeline)), hash);
  check('the server ends', await ended === 0, said);
  check('its policy was kept', (await page.eval('violations')).length === 0, await page.eval('violations'));
  let came = 0;
  const server = http.createServer((_, response) => { came++; response.end(); }).unref();
  await new Promise(done => server.listen(0, '127.0.0.1', done));
  const refused = await page.eval(`fetch('http://127.0.0.1:${server.address().port}/').then(() => false, () => true)`);
  server.close();
  check('it can reach no other address', refused && came === 0, came);
}

run(chromium, main).catch(error => { console.error(error); process.exitCode = 1; });
