'use strict';
// Headless Chromium, driven through its debugging pipe, and counted checks.
const { spawn } = require('child_process');
const fs = require('fs');
const http = require('http');
const os = require('os');
const path = require('path');

const failures = [];
let checks = 0;
function check(what, ok, seen) {
  checks++;
  if (!ok) failures.push(`${what}${seen === undefined ? '' : `: ${JSON.stringify(seen)}`}`);
}

/** A run that takes longer hangs. */
const MAX_MINUTES = 20;

/** The browser: messages are JSON with a zero byte after each. `died` is rejected when it or a page of it can no longer answer. */
function start(chromium, profile) {
  const flags = ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-background-networking',
    '--disable-component-update', '--no-first-run', '--hide-scrollbars', '--remote-debugging-pipe',
    '--window-size=1440,900', `--user-data-dir=${profile}`, 'about:blank'];
  const child = spawn(chromium, flags, { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
  const waiting = new Map(), listeners = [];
  let next = 1, rest = Buffer.alloc(0), gone = null, die;
  const died = new Promise((_, reject) => { die = reject; });
  // `run` waits for it, and others may.
  died.catch(() => {});
  const ended = new Promise(done => child.once('exit', done).once('error', done));
  const fail = error => {
    die(error);
    waiting.forEach(({ reject }) => reject(error));
    waiting.clear();
  };
  const over = error => {
    gone ??= error;
    fail(gone);
  };
  child.stdio[4].on('data', chunk => {
    rest = Buffer.concat([rest, chunk]);
    for (let end; (end = rest.indexOf(0)) >= 0;) {
      const message = JSON.parse(rest.subarray(0, end).toString());
      rest = rest.subarray(end + 1);
      if (message.id) {
        const answered = waiting.get(message.id);
        waiting.delete(message.id);
        if (message.error) answered?.reject(new Error(message.error.message)); else answered?.resolve(message.result);
        continue;
      }
      if (message.method === 'Inspector.targetCrashed') fail(new Error('a page crashed'));
      listeners.forEach(listener => listener(message));
    }
  });
  child.on('exit', (code, signal) => over(new Error(`Chromium ended: ${signal ?? code}`)));
  child.on('error', over);
  for (const pipe of [child.stdio[3], child.stdio[4]]) pipe.on('error', over).on('close', () => over(new Error('Chromium closed its pipe')));
  setTimeout(() => {
    fail(new Error(`not done after ${MAX_MINUTES} minutes`));
    child.kill('SIGKILL');
  }, MAX_MINUTES * 60000).unref();
  const send = (method, params = {}, sessionId) => new Promise((resolve, reject) => {
    if (gone) return reject(gone);
    const id = next++;
    waiting.set(id, { resolve, reject });
    child.stdio[3].write(JSON.stringify({ id, method, params, sessionId }) + '\0');
  });
  return {
    died,
    listen: listener => listeners.push(listener),
    send,
    close: async () => {
      await send('Browser.close').catch(() => child.kill());
      await ended;
    },
  };
}

async function open(browser, out) {
  const { targetId } = await browser.send('Target.createTarget', { url: 'about:blank' });
  const { sessionId } = await browser.send('Target.attachToTarget', { targetId, flatten: true });
  const send = (method, params) => browser.send(method, params, sessionId);
  const page = { send, requests: [], errors: [], blocked: 0 };
  browser.listen(({ method, params, sessionId: from }) => {
    if (from !== sessionId) return;
    if (method === 'Network.requestWillBeSent') page.requests.push(params.request.url);
    if (method === 'Runtime.exceptionThrown') page.errors.push(params.exceptionDetails.exception ? params.exceptionDetails.exception.description : params.exceptionDetails.text);
    if (method === 'Runtime.consoleAPICalled' && ['error', 'warning'].includes(params.type)) page.errors.push(params.args.map(a => a.value).join(' '));
    if (method === 'Log.entryAdded' && params.entry.level === 'error') page.errors.push(params.entry.text);
  });
  for (const domain of ['Page', 'Runtime', 'Network', 'Log']) await send(domain + '.enable');
  await send('Performance.enable', { timeDomain: 'threadTicks' });
  page.eval = async expression => {
    const { result, exceptionDetails } = await send('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception ? exceptionDetails.exception.description : exceptionDetails.text}`);
    return result.value;
  };
  page.mouse = (type, x, y, more = {}) => send('Input.dispatchMouseEvent', { type, x, y, ...more });
  page.click = async (x, y) => {
    await page.mouse('mouseMoved', x, y);
    await page.mouse('mousePressed', x, y, { button: 'left', clickCount: 1 });
    await page.mouse('mouseReleased', x, y, { button: 'left', clickCount: 1 });
  };
  page.key = async (key, more = {}) => {
    await send('Input.dispatchKeyEvent', { type: 'keyDown', key, text: key.length === 1 ? key : key === 'Enter' ? '\r' : undefined, ...more });
    await send('Input.dispatchKeyEvent', { type: 'keyUp', key, ...more });
  };
  page.frame = () => page.eval('new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))');
  page.dark = value => send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: value ? 'dark' : 'light' }] });
  page.shot = async name => {
    await page.frame();
    const { data } = await send('Page.captureScreenshot', { format: 'png' });
    fs.writeFileSync(path.join(out, name + '.png'), Buffer.from(data, 'base64'));
  };
  page.cpu = async () => (await send('Performance.getMetrics')).metrics.find(m => m.name === 'TaskDuration').value;
  /** Loads a page. */
  page.load = async url => {
    const loaded = new Promise(done => browser.listen(m => { if (m.sessionId === sessionId && m.method === 'Page.loadEventFired') done(); }));
    await send('Page.navigate', { url });
    await loaded;
  };
  return page;
}

/** The policy of the page forbids the network and other scripts, even if a script tries. `more` are further attempts: promises of 1 if refused. */
async function forbids(page, more = () => []) {
  let came = 0;
  const server = http.createServer((_, response) => { came++; response.end(); }).unref();
  await new Promise(done => server.listen(0, '127.0.0.1', done));
  const url = `http://127.0.0.1:${server.address().port}/`;
  const refused = await page.eval(`Promise.all([
    fetch('${url}').then(() => 0, () => 1),
    new Promise(done => { const i = new Image(); i.onload = () => done(0); i.onerror = () => done(1); i.src = '${url}'; }),
    new Promise(done => { const s = document.createElement('script'); s.onload = () => done(0); s.onerror = () => done(1); s.src = '${url}'; document.body.append(s); }),
    (() => { const s = document.createElement('script'); s.textContent = 'window.foreign = 1'; document.body.append(s); return window.foreign ? 0 : 1; })(),
    ${more(url).join(', ')}
  ])`);
  server.close();
  check('the policy forbids the network and other scripts', came === 0 && refused.every(Boolean), [came, refused]);
}

/** Runs `test` with a browser, and ends the process with the result of its checks. */
async function run(chromium, test) {
  // Also if nothing is left to wait for before the end.
  process.exitCode = 1;
  const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'triscope-chromium-'));
  try {
    const browser = start(chromium, profile);
    try {
      await Promise.race([test(browser), browser.died]);
    } finally {
      await browser.close();
    }
  } finally {
    fs.rmSync(profile, { recursive: true, force: true, maxRetries: 20 });
  }
  failures.forEach(failure => console.error(`failed: ${failure}`));
  console.log(`${checks - failures.length} passed, ${failures.length} failed`);
  process.exitCode = failures.length || !checks ? 1 : 0;
}

module.exports = { check, forbids, open, run };
