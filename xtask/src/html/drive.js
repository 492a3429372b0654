'use strict';
// Drives headless Chromium through its debugging pipe and checks pages of `triscope report --html`.
// usage: node drive.js CHROMIUM OUT PAGE=KIND…
const { spawn } = require('child_process');
const fs = require('fs');
const http = require('http');
const os = require('os');
const path = require('path');

const [chromium, out, ...pages] = process.argv.slice(2);
const failures = [];
let checks = 0;
function check(what, ok, seen) {
  checks++;
  if (!ok) failures.push(`${what}${seen === undefined ? '' : `: ${JSON.stringify(seen)}`}`);
}

/** The browser: messages are JSON with a zero byte after each. */
function start(profile) {
  const flags = ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-background-networking',
    '--disable-component-update', '--no-first-run', '--hide-scrollbars', '--remote-debugging-pipe',
    '--window-size=1440,900', `--user-data-dir=${profile}`, 'about:blank'];
  const child = spawn(chromium, flags, { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
  const waiting = new Map(), listeners = [];
  let next = 1, rest = Buffer.alloc(0);
  child.stdio[4].on('data', chunk => {
    rest = Buffer.concat([rest, chunk]);
    for (let end; (end = rest.indexOf(0)) >= 0;) {
      const message = JSON.parse(rest.subarray(0, end).toString());
      rest = rest.subarray(end + 1);
      if (message.id) {
        const { resolve, reject } = waiting.get(message.id);
        waiting.delete(message.id);
        if (message.error) reject(new Error(message.error.message)); else resolve(message.result);
      } else listeners.forEach(listener => listener(message));
    }
  });
  child.on('exit', code => waiting.forEach(({ reject }) => reject(new Error(`Chromium ended: ${code}`))));
  return {
    child,
    listen: listener => listeners.push(listener),
    send: (method, params = {}, sessionId) => new Promise((resolve, reject) => {
      const id = next++;
      waiting.set(id, { resolve, reject });
      child.stdio[3].write(JSON.stringify({ id, method, params, sessionId }) + '\0');
    }),
  };
}

async function open(browser) {
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
  page.view = () => page.eval('triscope.view');
  page.dark = value => send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: value ? 'dark' : 'light' }] });
  page.shot = async name => {
    await page.frame();
    const { data } = await send('Page.captureScreenshot', { format: 'png' });
    fs.writeFileSync(path.join(out, name + '.png'), Buffer.from(data, 'base64'));
  };
  page.cpu = async () => (await send('Performance.getMetrics')).metrics.find(m => m.name === 'TaskDuration').value;
  page.go = async file => {
    const before = await page.cpu();
    const loaded = new Promise(done => browser.listen(m => { if (m.sessionId === sessionId && m.method === 'Page.loadEventFired') done(); }));
    await send('Page.navigate', { url: 'file://' + path.resolve(file) });
    await loaded;
    const wall = await page.eval('triscope.ready.then(() => { triscope.paint(); return performance.now(); })');
    return { wall, cpu: await page.cpu() - before };
  };
  return page;
}

/** The top of the canvas in the page. */
const top = page => page.eval("document.getElementById('canvas').getBoundingClientRect().top");

/** The middle of the widest visible item of a lane, in the page. */
const widest = page => page.eval(`(() => {
  const t = triscope, view = t.view, canvas = document.getElementById('canvas').getBoundingClientRect();
  let best = null;
  t.rows.forEach(row => {
    if (row.isGroup || row.form < 0 || row.form === 3 || row.y < 75 || row.y + row.height > canvas.height) return;
    const track = t.data.tracks.find(x => x.name === row.name && x.form === row.form && x.items);
    if (!track) return;
    const d = track.items;
    for (let i = 0; i < d.n; i++) {
      const x0 = Math.max(232, t.toX(d.begin[i])), x1 = Math.min(canvas.width, t.toX(d.end[i]));
      if (x1 - x0 > 4 && (!best || x1 - x0 > best.width) && t.data.tracks.filter(x => x.name === row.name).length === 1)
        best = { x: (x0 + x1) / 2, y: canvas.top + row.y + row.height / 2, width: x1 - x0, name: row.name, index: i };
    }
  });
  return best;
})()`);

async function interact(page) {
  const y = await top(page) + 300, whole = await page.view();
  const span = v => v.t1 - v.t0;
  // The wheel zooms around the pointer.
  const under = v => v.t0 + (836 - 232) / (1440 - 232) * span(v);
  await page.mouse('mouseMoved', 836, y);
  await page.mouse('mouseWheel', 836, y, { deltaX: 0, deltaY: -200 });
  await page.frame();
  const wheel = await page.view();
  check('the wheel zooms in', span(wheel) < span(whole) * 0.8, [whole, wheel]);
  check('the time under the pointer stays', Math.abs(under(wheel) - under(whole)) < span(whole) * 0.01, [whole, wheel]);
  await page.key('w');
  const w = await page.view();
  check('w zooms in', span(w) < span(wheel) * 0.8, [wheel, w]);
  await page.key('d');
  const d = await page.view();
  check('d moves right', d.t0 > w.t0 && Math.abs(span(d) / span(w) - 1) < 1e-6, [w, d]);
  await page.key('a');
  const a = await page.view();
  check('a moves back', Math.abs(a.t0 - w.t0) < span(w) * 0.01, [w, a]);
  await page.mouse('mousePressed', 900, y, { button: 'left', clickCount: 1 });
  await page.mouse('mouseMoved', 800, y, { button: 'left', buttons: 1 });
  await page.mouse('mouseReleased', 800, y, { button: 'left', clickCount: 1 });
  const dragged = await page.view();
  check('dragging moves', Math.abs((dragged.t0 - a.t0) / span(a) - 100 / 1208) < 0.01, [a, dragged]);
  await page.key('s');
  check('s zooms out', span(await page.view()) > span(dragged) * 1.2);
  await page.key('0');
  const again = await page.view();
  check('0 shows everything', Math.abs(span(again) / span(whole) - 1) < 0.01, again);
  // A click selects what is there.
  await page.frame();
  let item = await widest(page);
  for (let closer = 0; !item && closer < 60; closer++) {
    await page.key('w');
    await page.frame();
    item = await widest(page);
  }
  check('there is an item to click', !!item);
  if (item) {
    await page.click(item.x, item.y);
    const selection = await page.eval('triscope.selection');
    check('a click selects the item', selection && selection.track === item.name && selection.index === item.index, [item, selection]);
    check('the details have its duration', selection && selection.text.includes('duration'), selection);
    await page.key('f');
    const fitted = await page.view();
    check('f fits the selection', span(fitted) <= span(whole) * 1.3, fitted);
    await page.key('Escape');
    check('Escape clears the selection', await page.eval('triscope.selection') === null);
    await page.key('0');
  }
  // A group folds and unfolds.
  const group = await page.eval('(r => r && { y: r.y + r.height / 2, name: r.name })(triscope.rows.find(r => r.isGroup && r.y > 70))');
  const count = () => page.eval('triscope.rows.length');
  const before = await count(), canvasTop = await top(page);
  await page.click(60, canvasTop + group.y);
  const folded = await count();
  check('a group folds', folded !== before, [group, before, folded]);
  await page.click(60, canvasTop + group.y);
  check('and unfolds', await count() === before);
}

async function searchFor(page, query) {
  await page.key('/');
  await page.eval("document.getElementById('search').select()");
  for (const c of query) await page.key(c);
  await page.key('Enter');
  return { matches: await page.eval('triscope.matches'), selection: await page.eval('triscope.selection') };
}

async function main() {
  const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'triscope-chromium-'));
  const browser = start(profile);
  try {
    for (const argument of pages) {
      const [file, kind] = argument.split('=');
      const name = path.basename(file, '.html'), page = await open(browser);
      await page.dark(false);
      const { wall, cpu } = await page.go(file);
      const items = await page.eval('triscope.data.items');
      console.log(`${name}: ${items} intervals, ${(fs.statSync(file).size / 1e6).toFixed(1)} MB, ${(cpu * 1000).toFixed(0)} ms of CPU time to the first picture (${wall.toFixed(0)} ms)`);
      check(`${name} is not empty`, items > 0);
      check(`${name} shows no failure`, await page.eval("document.getElementById('failure').hidden"));
      if (kind === 'large') {
        check('a million intervals', items >= 1e6, items);
        check('load within 3 s of CPU time', cpu <= 3, cpu);
      }
      await interact(page);
      if (kind === 'shop') {
        const { matches, selection } = await searchFor(page, 'main.serve');
        check('search finds the handlers', matches > 10, matches);
        check('Enter selects the first match', selection && selection.text.includes('main.serve'), selection);
        const { selection: second } = await searchFor(page, 'main.serve');
        check('Enter again selects the next match', second && (second.index !== selection.index || second.track !== selection.track), second);
        check('a goroutine is found by its number', (await searchFor(page, 'G1')).matches > 0);
        check('nonsense is not found', (await searchFor(page, 'zzzyx')).matches === 0);
        await page.key('Escape');
        await page.eval("triscope.show('requests')");
        const rows = await page.eval("document.querySelectorAll('#path tr.row').length");
        check('the longest request has pieces', rows > 0, rows);
        const sums = await page.eval('triscope.data.paths.every(p => p.pieces.reduce((sum, piece) => sum + piece[1], 0) === p.nanos)');
        check('pieces sum to each request', sums);
        await page.shot(name + '-requests');
        await page.eval("document.querySelector('#path button').click()");
        check('the critical path is on the timeline', (await page.eval('triscope.rows[0].name')) === 'critical path');
        await page.shot(name + '-path');
        await page.eval("triscope.show('flames')");
        check('there is a flame graph', (await page.eval("document.querySelectorAll('#trees button').length")) > 0);
        await page.shot(name + '-flames');
        await page.eval("triscope.show('report')");
        check('the tables of the report are there', (await page.eval("document.querySelectorAll('#report table').length")) >= 3);
        await page.shot(name + '-report');
        await page.eval("triscope.show('timeline')");
      }
      if (kind === 'hostile') {
        check('names are no markup', (await page.eval("document.querySelectorAll('img, script:not(:first-of-type), b#owned').length + (window.owned || 0)")) <= 1, await page.eval('document.body.innerHTML.length'));
        check('no name was executed', (await page.eval('typeof window.owned')) === 'undefined');
        check('names are shown as they are', (await page.eval('triscope.data.texts.join()')).includes('</script><img src=x onerror=owned=1>'));
        const { selection } = await searchFor(page, 'onerror');
        check('a hostile name is found', !!selection, selection);
        check('its details are text', (await page.eval("document.querySelectorAll('#details img').length")) === 0);
        await page.key('Escape');
        await page.eval("triscope.show('report'), triscope.show('requests'), triscope.show('losses'), triscope.show('timeline')");
        check('still nothing was executed', (await page.eval('typeof window.owned')) === 'undefined');
      }
      await page.key('0');
      await page.shot(name + '-light');
      await page.dark(true);
      await page.shot(name + '-dark');
      await page.eval('triscope.openAll()');
      await page.shot(name + '-open');
      check(`${name} has no errors`, page.errors.length === 0, page.errors);
      const foreign = page.requests.filter(url => url !== 'file://' + path.resolve(file) && !url.startsWith('data:'));
      check(`${name} requests nothing`, foreign.length === 0, foreign);
      // The policy holds even if a script tries.
      let came = 0;
      const server = http.createServer((_, response) => { came++; response.end(); });
      await new Promise(done => server.listen(0, '127.0.0.1', done));
      const url = `http://127.0.0.1:${server.address().port}/`;
      const refused = await page.eval(`Promise.all([
        fetch('${url}').then(() => 0, () => 1),
        new Promise(done => { const i = new Image(); i.onload = () => done(0); i.onerror = () => done(1); i.src = '${url}'; }),
        new Promise(done => { const s = document.createElement('script'); s.onload = () => done(0); s.onerror = () => done(1); s.src = '${url}'; document.body.append(s); }),
      ])`);
      server.close();
      check('the policy forbids the network', came === 0 && refused.every(Boolean), [came, refused]);
      await page.send('Page.close');
    }
  } finally {
    const ended = new Promise(done => browser.child.once('exit', done));
    await browser.send('Browser.close').catch(() => browser.child.kill());
    await ended;
    fs.rmSync(profile, { recursive: true, force: true, maxRetries: 20 });
  }
  failures.forEach(failure => console.error(`failed: ${failure}`));
  console.log(`${checks - failures.length} passed, ${failures.length} failed`);
  process.exitCode = failures.length || !checks ? 1 : 0;
}
main().catch(error => { console.error(error); process.exitCode = 1; });
