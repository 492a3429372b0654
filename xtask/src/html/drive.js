'use strict';
// Drives headless Chromium through its debugging pipe and checks pages of `triscope report --html`.
// usage: node drive.js CHROMIUM OUT PAGE=KIND…
const fs = require('fs');
const path = require('path');
const { check, forbids, open, run } = require('./browser.js');

const [chromium, out, ...pages] = process.argv.slice(2);
/** Opens a tab for a page of `triscope report --html`. */
async function tab(browser) {
  const page = await open(browser, out);
  page.view = () => page.eval('triscope.view');
  page.go = async file => {
    const before = await page.cpu();
    await page.load('file://' + path.resolve(file));
    const wall = await page.eval("typeof triscope === 'undefined' ? performance.now() : triscope.ready.then(() => { triscope.paint(); return performance.now(); })");
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
  await page.mouse('mousePressed', 900, y, { button: 'right', buttons: 2, clickCount: 1 });
  await page.mouse('mouseMoved', 800, y, { button: 'right', buttons: 2 });
  await page.mouse('mouseReleased', 800, y, { button: 'right', clickCount: 1 });
  await page.eval("document.getElementById('canvas').dispatchEvent(new MouseEvent('dblclick', { clientX: 900, clientY: document.getElementById('canvas').getBoundingClientRect().top + 10 }))");
  const kept = await page.view();
  check('another button or a double click on nothing moves nothing', kept.t0 === dragged.t0 && kept.t1 === dragged.t1, [dragged, kept]);
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
  // The tip is of the interval under the pointer, also after a key has moved the view.
  const tip = () => page.eval("(tip => tip.hidden ? '' : tip.textContent)(document.getElementById('tip'))");
  await page.mouse('mouseMoved', 900, y);
  for (const key of ['w', 'd', 'd', 'ArrowDown', 'ArrowDown', 'ArrowUp', 'ArrowUp', '0']) {
    await page.key(key);
    await page.frame();
    const shown = await tip();
    await page.mouse('mouseMoved', 900, y + 1);
    await page.mouse('mouseMoved', 900, y);
    const under = await tip();
    check(`the tip follows the view after ${key}`, shown === under, [shown, under]);
  }
  // A click on the name of a lane sums it, and links its largest intervals.
  const lanes = await page.eval(`triscope.rows.filter(r => !r.isGroup && r.name && r.form >= 0 && r.form < 3 && r.y > 75 && r.y < 600)
    .map(r => ({ name: r.name, y: r.y + r.height / 2, form: r.form }))`);
  const forms = new Map(lanes.map(lane => [lane.form, lane]));
  check('there are lanes to sum', forms.size > 0, lanes);
  for (const { name, y } of forms.values()) {
    await page.click(60, await top(page) + y);
    const lane = await page.eval('triscope.lane');
    check('a click on the name of a lane sums it', lane && lane.name === name && lane.text.includes('longest'), [name, lane]);
    check('its uses have shares, unless they are instants', lane && /\d %|0 ns/.test(lane.text), lane);
    check('its largest intervals are linked', lane && lane.links > 0 && lane.links <= 10, lane);
    await page.eval("document.querySelector('#details .link').click()");
    const selection = await page.eval('triscope.selection');
    check('a link selects the interval', selection && selection.track === name, [name, selection]);
    check('and the interval replaces the sums', await page.eval('triscope.lane') === null);
    await page.key('Escape');
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

/** Everything of the timeline that a click does, and its names for a screen reader. */
async function keyboard(page, name) {
  const status = () => page.eval("document.getElementById('status').textContent"), count = () => page.eval('triscope.rows.length');
  const nameless = await page.eval(`[...document.querySelectorAll('button, input, canvas, aside')]
    .filter(e => !e.getAttribute('aria-label') && !/[A-Za-z]/.test(e.textContent) && !e.hidden).map(e => e.id)`);
  check(`${name}: controls have names`, nameless.length === 0, nameless);
  await page.eval("document.getElementById('canvas').focus()");
  let group = '', lane = '';
  for (let at = 0; at < 60 && !(group && lane); at++) {
    await page.key('j');
    const words = await status();
    if (words.endsWith(' group') && !group) {
      const before = await count();
      await page.key('Enter');
      const now = await status();
      check(`${name}: Enter folds a group`, (await count()) !== before && now !== words, [words, now]);
      await page.key('Enter');
      check(`${name}: and unfolds it`, (await count()) === before && (await status()) === words, words);
      group = words;
    } else if (/ intervals?$/.test(words) && !lane) {
      await page.key('Enter');
      const sums = await page.eval('triscope.lane');
      check(`${name}: Enter sums a lane`, sums && words.startsWith(sums.name + ', '), [words, sums && sums.name]);
      await page.key('.');
      const selection = await page.eval('triscope.selection');
      check(`${name}: a period selects an interval of the row`, selection && words.startsWith(selection.track + ', '), [words, selection]);
      check(`${name}: it is read`, / (ns|\u00b5s|ms|s)$/.test(await status()), await status());
      lane = words;
    }
  }
  check(`${name}: j reaches groups and lanes`, group && lane, [group, lane]);
  const before = await status();
  await page.key('j');
  await page.key('k');
  await page.key('k');
  check(`${name}: k goes back`, (await status()) !== before, before);
  await page.key('Escape');
  await page.key('0');
}

/** The flame graph and the tables, with keys. */
async function flameKeys(page) {
  const frame = () => page.eval("document.getElementById('frame').textContent"), flame = () => page.eval('triscope.flame');
  await page.eval("document.getElementById('flame').focus()");
  await page.key('ArrowDown');
  const root = await frame();
  await page.key('ArrowDown');
  const callee = await frame();
  check('arrows move between frames', root.startsWith('all: ') && callee !== root && callee.includes(' %, own '), [root, callee]);
  await page.key('ArrowRight');
  await page.key('ArrowLeft');
  check('left goes back', (await frame()) === callee, await frame());
  await page.key('Enter');
  const zoomed = await flame();
  check('Enter zooms', zoomed.top === zoomed.at && zoomed.top > 0, zoomed);
  await page.key('Escape');
  check('Escape shows all', (await flame()).top === 0);
  await page.key('ArrowUp');
  check('up is the caller', (await frame()) === root, await frame());
}
async function tableKeys(page) {
  await page.eval("document.querySelector('#report th').focus()");
  await page.key(' ');
  check('a table is sorted with the space bar', await page.eval("document.querySelector('#report th').getAttribute('aria-sort')") === 'ascending');
}

/** The tabs are one stop of Tab, and arrows move between them. */
async function tabKeys(page) {
  const shown = () => page.eval("[...document.querySelectorAll('[role=tab][aria-selected=true]')].map(tab => tab.id).join()");
  const focused = () => page.eval('document.activeElement.id');
  await page.eval("triscope.show('report'), document.getElementById('tab-report').focus()");
  const view = await page.view();
  for (const [key, tab] of [['ArrowRight', 'tab-losses'], ['ArrowRight', 'tab-timeline'], ['ArrowLeft', 'tab-losses'], ['Home', 'tab-timeline'], ['End', 'tab-losses']]) {
    await page.key(key);
    check(`${key} selects ${tab}`, (await shown()) === tab && (await focused()) === tab, [await shown(), await focused()]);
  }
  check('it moves nothing else', JSON.stringify(await page.view()) === JSON.stringify(view));
  check('Tab reaches the selected one', await page.eval("[...document.querySelectorAll('[role=tab]')].filter(tab => tab.tabIndex === 0).map(tab => tab.id).join() === 'tab-losses'"));
}

/** The colours that the legend explains, and the kinds of the lanes that are decoded. */
const legend = page => page.eval(`(() => {
  const names = new Set();
  for (const track of triscope.data.tracks)
    if (track.items && track.items.kind && track.form !== 0) track.items.kind.forEach(kind => names.add(triscope.kinds[kind]));
  // Their colour is that of their name.
  for (const name of ['task', 'region', 'activity']) names.delete(name);
  const shown = document.querySelector('#details .legend').querySelectorAll('span');
  return { shown: [...shown].map(span => span.textContent).sort(), decoded: [...names].sort() };
})()`);

/** Lanes that are decoded late have their kinds in the legend. Returns whether there were new ones. */
async function explains(page, name) {
  const same = ({ shown, decoded }) => shown.join() === decoded.join();
  const first = await legend(page);
  check(`${name}: the legend has the kinds of its lanes`, same(first), first);
  await page.eval('triscope.data.tracks.forEach((_, id) => triscope.items(id)), triscope.paint()');
  const last = await legend(page);
  check(`${name}: and of those that are decoded later`, same(last), last);
  return last.shown.length > first.shown.length;
}

/** Texts on the canvases are read without effort: 4.5 to 1 of WCAG. */
async function contrasts(page, name) {
  const luminance = color => color.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const rgb = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));
  const low = (await page.eval('triscope.fills')).map(([fill, ink]) => {
    const [dark, light] = [luminance(fill), luminance(rgb(ink))].sort((a, b) => a - b);
    return [fill, ink, (light + 0.05) / (dark + 0.05)];
  }).filter(([, , contrast]) => contrast < 4.5);
  check(`${name}: texts contrast with what is behind them`, low.length === 0, low);
}

/** The bars of a counter, and the duration of a value that lasts for hours. */
async function counter(page) {
  const find = "const t = triscope, track = t.data.tracks.find(track => track.name === 'load'), d = t.items(track.id);";
  check('values that are not finite are left out', await page.eval(`(() => { ${find} return d.value.join(); })()`) === '9,0,5,1');
  await page.key('0');
  const colors = await page.eval(`(() => {
    ${find}
    // The view begins within the value before it, which is 0.
    t.select(track.id, 2);
    const canvas = document.getElementById('canvas'), ratio = canvas.width / canvas.clientWidth;
    const color = x => {
      t.paint();
      const row = t.rows.find(row => row.name === 'load'), y = row.y + row.height - 4;
      return canvas.getContext('2d').getImageData(Math.floor(x * ratio), Math.floor(y * ratio), 1, 1).data.join();
    };
    const edge = color(232), bar = color(t.toX((d.begin[2] + d.end[2]) / 2));
    d.value[0] = 0;
    const without = color(232);
    d.value[0] = 9;
    return [edge, without, bar];
  })()`);
  const [edge, without, bar] = colors;
  check('a value before the view has no bar', edge === without && bar !== edge, colors);
  const long = await page.eval(`(() => {
    ${find}
    const last = d.n - 1, end = d.end[last];
    d.end[last] = d.begin[last] + 12345.6e9;
    t.select(track.id, last);
    d.end[last] = end;
    return t.selection.text;
  })()`);
  check('a duration of hours has a digit after the second', long.includes('12345.6 s'), long);
  await page.key('Escape');
  await page.key('0');
}

/** The narrowest view of 400 days: times after months have no digit for less. */
async function months(page) {
  const nanos = await page.eval('triscope.data.nanos'), long = 400 * 86400e9, least = long * 2 ** -45;
  await page.eval(`triscope.data.nanos = ${long}`);
  await page.key('0');
  let span = Infinity, before;
  do {
    before = span;
    await page.key('w');
    const { t0, t1 } = await page.view();
    span = t1 - t0;
  } while (span < before * 0.99 && span > least / 2);
  check('the narrowest view depends on the length of the timeline', Math.abs(span / least - 1) < 0.05, [span, least]);
  await page.frame();
  await page.eval(`triscope.data.nanos = ${nanos}`);
  await page.key('0');
}

async function searchFor(page, query) {
  await page.key('/');
  await page.eval("document.getElementById('search').select()");
  for (const c of query) await page.key(c);
  await page.key('Enter');
  return { matches: await page.eval('triscope.matches'), selection: await page.eval('triscope.selection') };
}

/** The page loads nothing and has no errors. Closes it. */
async function isolated(page, name, file) {
  check(`${name} has no errors`, page.errors.length === 0, page.errors);
  const foreign = page.requests.filter(url => url !== 'file://' + path.resolve(file) && !url.startsWith('data:'));
  check(`${name} requests nothing`, foreign.length === 0, foreign);
  await forbids(page);
  await page.send('Page.close');
}

/** A page of `triscope go summary --html`: plots, tables and stacks, without a script. */
async function summary(page, name) {
  const plots = await page.eval(`[...document.querySelectorAll('figure')].map(figure => {
    const svg = figure.querySelector('svg'), box = svg && svg.getBoundingClientRect();
    const marks = [...figure.querySelectorAll('polyline, polygon, rect')].map(mark => mark.getBoundingClientRect());
    return {
      title: figure.querySelector('figcaption').textContent, marks: marks.length, labels: figure.querySelectorAll('text').length,
      inside: marks.every(m => m.left >= box.left - 1 && m.right <= box.right + 1 && m.top >= box.top - 1 && m.bottom <= box.bottom + 1),
      drawn: marks.some(m => m.width > 0 && m.height > 0),
    };
  })`);
  for (const title of ['Ps over time', 'minimum mutator utilization', 'waits for a P', 'stops of the world']) {
    const plot = plots.find(plot => plot.title.startsWith(title));
    check(`${name} has a plot: ${title}`, plot && plot.drawn && plot.inside && plot.labels > 4, plot);
  }
  check('tables have rows', (await page.eval("document.querySelectorAll('tr.row').length")) > 20);
  const stack = await page.eval(`(() => {
    const details = document.querySelector('details'), list = details.querySelector('ol');
    const before = list.checkVisibility();
    details.querySelector('summary').click();
    return [before, list.checkVisibility(), list.children.length];
  })()`);
  check('a click opens a stack', !stack[0] && stack[1] && stack[2] > 0, stack);
  const back = () => page.eval('getComputedStyle(document.body).backgroundColor');
  const light = await back();
  await page.shot(name + '-light');
  await page.eval("document.getElementById('theme').click()");
  check('the button changes the theme', (await back()) !== light);
  check('a line is not filled', (await page.eval("getComputedStyle(document.querySelector('polyline')).fill")) === 'none');
  await page.shot(name + '-dark');
}

async function main(browser) {
  let grown = 0;
  for (const argument of pages) {
    const [file, kind] = argument.split('=');
    const name = path.basename(file, '.html'), page = await tab(browser);
    await page.dark(false);
    const { wall, cpu } = await page.go(file);
    if (kind === 'summary') {
      await summary(page, name);
      await isolated(page, name, file);
      continue;
    }
    const items = await page.eval('triscope.data.items');
    console.log(`${name}: ${items} intervals, ${(fs.statSync(file).size / 1e6).toFixed(1)} MB, ${(cpu * 1000).toFixed(0)} ms of CPU time to the first picture (${wall.toFixed(0)} ms)`);
    check(`${name} is not empty`, items > 0);
    check(`${name} shows no failure`, await page.eval("document.getElementById('failure').hidden"));
    if (kind === 'large') {
      check('a million intervals', items >= 1e6, items);
      check('load within 3 s of CPU time', cpu <= 3, cpu);
    }
    grown += await explains(page, name);
    await interact(page);
    await keyboard(page, name);
    if (kind === 'shop') {
      const { matches, selection } = await searchFor(page, 'main.serve');
      check('search finds the handlers', matches > 10, matches);
      check('Enter selects the first match', selection && selection.text.includes('main.serve'), selection);
      const { selection: second } = await searchFor(page, 'main.serve');
      check('Enter again selects the next match', second && (second.index !== selection.index || second.track !== selection.track), second);
      await page.key('Enter');
      const third = await page.eval('triscope.selection');
      check('Enter alone selects the one after it', third && (third.index !== second.index || third.track !== second.track), [second, third]);
      check('a goroutine is found by its number', (await searchFor(page, 'G1')).matches > 0);
      check('nonsense is not found', (await searchFor(page, 'zzzyx')).matches === 0);
      const cut = await page.eval(`(g => [1, 2].map(end => triscope.fit(g, 'worker of a pool '.repeat(5) + end, 150)))(document.createElement('canvas').getContext('2d'))`);
      check('long names that differ at their end stay different', cut[0].includes('\u2026') && cut[0] !== cut[1], cut);
      await page.key('Escape');
      await page.eval("triscope.show('requests')");
      const rows = await page.eval("document.querySelectorAll('#path tr.row').length");
      check('the longest request has pieces', rows > 0, rows);
      const sums = await page.eval('triscope.data.paths.every(p => [...p.pieces.map(piece => piece[1]), ...p.rest.map(rest => rest[2])].reduce((sum, n) => sum + n, 0) === p.nanos)');
      check('pieces sum to each request', sums);
      await page.eval("triscope.data.paths[0].rest = [['stopped', 2, 5000]], document.querySelector('.request').click()");
      const rest = await page.eval("document.getElementById('path').textContent");
      check('pieces that are in the sums only are counted', rest.includes('The 2 shortest pieces, 5 \u00b5s together') && rest.includes('stopped 5 \u00b5s'), rest.slice(0, 300));
      await page.shot(name + '-requests');
      await page.eval("document.querySelector('#path button').click()");
      check('the critical path is on the timeline', (await page.eval('triscope.rows[0].name')) === 'critical path');
      await page.shot(name + '-path');
      await page.eval("triscope.show('flames')");
      check('there is a flame graph', (await page.eval("document.querySelectorAll('#trees button').length")) > 0);
      const pressed = await page.eval(`(() => {
        const pressed = () => [...document.querySelectorAll('#trees button[aria-pressed=true]')].map(button => button.textContent);
        const buttons = document.querySelectorAll('#trees button'), before = pressed(), last = buttons[buttons.length - 1];
        last.click();
        const after = pressed();
        triscope.show('flames');
        const again = pressed();
        document.querySelector('#trees button').click();
        return [before, buttons[0].textContent, after, again, last.textContent];
      })()`);
      check('the flame graph that is shown is marked', pressed[0].join() === pressed[1] && pressed[2].join() === pressed[4] && pressed[3].join() === pressed[4], pressed);
      check('its deepest frame is on the canvas', await page.eval(`(() => {
        const tree = triscope.data.flames[+document.querySelector('#trees button').dataset.tree], depth = [0];
        tree.nodes.slice(1).forEach(([parent], i) => { depth[i + 1] = depth[parent] + 1; });
        return document.getElementById('flame').clientHeight >= (Math.max(...depth) + 1) * 19;
      })()`));
      const frame = await page.eval(`(() => {
        const texts = new Set(triscope.data.flames.flatMap(tree => tree.nodes.map(node => node[1])));
        return [...texts].filter(id => id).map(id => triscope.data.texts[id - 1]).find(name => name.startsWith('runtime.'));
      })()`);
      check('a function of stacks only is found', !frame || (await page.eval(`new Promise(done => {
        const field = document.getElementById('search');
        field.value = ${JSON.stringify(frame)};
        field.dispatchEvent(new Event('input'));
        setTimeout(() => done(document.getElementById('found').textContent), 400);
      })`)) !== 'nothing', frame);
      await page.shot(name + '-flames');
      await flameKeys(page);
      await page.eval("triscope.show('report')");
      check('the tables of the report are there', (await page.eval("document.querySelectorAll('#report table').length")) >= 3);
      await page.shot(name + '-report');
      await tableKeys(page);
      await tabKeys(page);
      await page.eval("triscope.show('timeline')");
    }
    if (kind === 'hostile') {
      const [lane, place] = await page.eval(`(() => {
        const kind = triscope.kinds.indexOf('system call, but no CPU');
        const track = triscope.data.tracks.find(track => track.form === 1 && triscope.items(track.id).kind.includes(kind));
        return track ? [track.id, triscope.items(track.id).kind.indexOf(kind)] : [-1, -1];
      })()`);
      check('a system call loses its CPU', place >= 0);
      const lock = await page.eval(`(() => {
        const track = triscope.data.tracks.find(track => track.name === 'lock waits');
        triscope.select(track.id, 0);
        return triscope.selection.text;
      })()`);
      check('a lock is held by its owner', /held by.* \(thread 99\)/.test(lock) && !lock.includes('belongs to'), lock);
      const gc = await page.eval(`(() => {
        const t = triscope, kind = t.kinds.indexOf('stop-the-world');
        const track = t.data.tracks.find(track => track.form === 2 && t.items(track.id).kind.includes(kind));
        t.select(track.id, t.items(track.id).kind.indexOf(kind));
        const names = [...document.querySelectorAll('#details dt')];
        return names.filter(dt => dt.textContent === 'belongs to').map(dt => dt.nextSibling.textContent);
      })()`);
      check('the GC of a pause is named', gc.join() === 'GC 3', gc);
      const own = await page.eval(`(() => {
        const t = triscope, isOwn = owner => owner > 4 && t.data.entities[owner - 5].slice(0, 2).join() === '2,7';
        const track = t.data.tracks.find(track => track.form === 2 && t.items(track.id).owner.some(isOwn));
        t.select(track.id, t.items(track.id).owner.findIndex(isOwn));
        const names = [...document.querySelectorAll('#details dt')];
        return names.filter(dt => ['process', 'parent'].includes(dt.textContent)).map(dt => dt.nextSibling.textContent);
      })()`);
      check('a process is not its parent', own.length === 2 && own[0].endsWith('(process 7)') && own[1].endsWith('(process 100)'), own);
      await page.eval(`triscope.select(${lane}, ${place})`);
      const preempted = await page.eval('triscope.selection');
      check('a thread that took the CPU is no waker', preempted.text.includes('CPU taken by') && !preempted.text.includes('woken by') && preempted.waker === '', preempted);
      // A .NET thread that the kernel's part shows has the lane of its kernel thread.
      const woken = await page.eval(`(() => {
        const t = triscope, isManaged = by => by > 4 && t.data.entities[by - 5][0] === 7;
        const track = t.data.tracks.find(track => track.form === 1 && t.items(track.id).by.some(isManaged));
        if (!track) return null;
        t.select(track.id, t.items(track.id).by.findIndex(isManaged));
        const links = [...document.querySelectorAll('#details .link')], link = links.find(link => link.textContent.endsWith('(thread 99)'));
        if (link) link.click();
        return [links.map(link => link.textContent), t.selection.track];
      })()`);
      check('a .NET thread is in the lane of its kernel thread', woken && woken[1].endsWith('(thread 99)'), woken);
      await page.key('Escape');
      await page.key('0');
      await counter(page);
      await months(page);
      const requests = await page.eval("document.getElementById('list').textContent");
      check('missing critical paths are named', requests.includes('of the 3 longest requests are missing') && !requests.includes('No task'), requests);
      check('names are no markup', (await page.eval("document.querySelectorAll('img, script:not(:first-of-type), b#owned').length + (window.owned || 0)")) === 0, await page.eval('document.body.innerHTML.length'));
      check('no name was executed', (await page.eval('typeof window.owned')) === 'undefined');
      check('names are shown as they are', (await page.eval('triscope.data.texts.join()')).includes('</script><img src=x onerror=owned=1>'));
      const colors = await page.eval('triscope.data.colors.size');
      check('two processes that had one process id have a colour each', colors === 3, colors);
      const losses = await page.eval("document.getElementById('losses').textContent");
      check('a note is shown as it is', losses.includes('</script><img src=x onerror=owned=1>') && !losses.includes('Nothing:'), losses);
      check('losses that are not listed are counted', losses.includes('1 more, not listed'));
      check('values that are not finite are counted', losses.includes('values of counters are not finite and have no bar1'), losses);
      const warning = await page.eval("document.getElementById('warning').textContent");
      check('the warning has losses only', warning === '⚠ 501 losses', warning);
      check('a thread is found by its whole number', (await searchFor(page, 'thread 10')).matches === 0 && (await searchFor(page, 'thread 100')).matches > 0);
      const { selection } = await searchFor(page, 'onerror');
      check('a hostile name is found', !!selection, selection);
      check('its details are text', (await page.eval("document.querySelectorAll('#details img').length")) === 0);
      await page.key('Escape');
      await page.eval("triscope.show('report'), triscope.show('requests'), triscope.show('losses'), triscope.show('timeline')");
      check('still nothing was executed', (await page.eval('typeof window.owned')) === 'undefined');
    }
    await page.key('0');
    await page.shot(name + '-light');
    await contrasts(page, name + ', light');
    await page.dark(true);
    await page.shot(name + '-dark');
    await contrasts(page, name + ', dark');
    await page.eval('triscope.openAll()');
    await page.shot(name + '-open');
    await isolated(page, name, file);
  }
  check('a page has kinds only in lanes that are decoded later', grown > 0);
}
run(chromium, main).catch(error => { console.error(error); process.exitCode = 1; });
