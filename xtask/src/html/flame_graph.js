'use strict';
// Drives headless Chromium through its debugging pipe and checks a flame graph against its folded stacks.
// usage: node drive.js CHROMIUM OUT SVG FOLDED
const fs = require('fs');
const path = require('path');
const { check, open, run } = require('./browser.js');

const [chromium, out, svg, folded] = process.argv.slice(2);

const stacks = fs.readFileSync(folded, 'utf8').trimEnd().split('\n').map(line => {
  const at = line.lastIndexOf(' ');
  return { frames: line.slice(0, at).split(';'), weight: Number(line.slice(at + 1)) };
});
const sum = list => list.reduce((all, { weight }) => all + weight, 0);
/** The share of the stacks with a frame that matches, in percent. */
const share = pattern => 100 * sum(stacks.filter(({ frames }) => frames.some(f => pattern.test(f)))) / sum(stacks);

/** The frames that are not hidden. */
const shown = page => page.eval(`[...document.querySelectorAll('#frames > g:not(.away)')].map(g => ({
  name: g.querySelector('title').textContent.replace(/ \\([^()]*\\)$/, ''),
  x: Number(g.querySelector('rect').getAttribute('x')), width: Number(g.querySelector('rect').getAttribute('width')),
  y: Number(g.querySelector('rect').getAttribute('y')), text: g.querySelector('text').textContent,
  isFound: g.classList.contains('found'), isFocused: g === document.activeElement }))`);
const found = page => page.eval("document.getElementById('found').textContent");
const focused = page => page.eval("(document.activeElement.querySelector?.('title') ?? {}).textContent");
const middle = frame => [frame.x + frame.width / 2, frame.y + 8];

async function search(page, text) {
  await page.key('/');
  for (const c of text) await page.key(c);
  await page.frame();
}

run(chromium, async browser => {
  const page = await open(browser, out);
  const loaded = 'file://' + path.resolve(svg);
  await page.load(loaded);
  const before = await shown(page);
  const names = new Set(stacks.flatMap(({ frames }) => frames));
  check('the first frame has all', before[0].name === 'all' && before[0].width === 1200, before[0]);
  check('frames are functions of the stacks', before.length > 20 && before.slice(1).every(f => names.has(f.name)));
  check('names are cut, not changed', before.every(f => f.name.startsWith(f.text)));
  check('a legend', await page.eval("[...document.querySelectorAll('svg > text')].some(t => t.textContent === 'Go')"));
  await page.shot('flame-graph');

  // Tooltips: of the element, and the line below.
  // The widest of those that have not all.
  const [wide] = before.filter(f => f.width < 1190).sort((a, b) => b.width - a.width || b.y - a.y);
  await page.mouse('mouseMoved', ...middle(wide));
  await page.frame();
  const detail = await page.eval("document.getElementById('detail').textContent");
  check('the frame under the pointer is described', detail.startsWith(wide.name + ' (') && / ms, \d+\.\d\d %\)$/.test(detail), detail);

  // The share of a search is that of the stacks.
  for (const pattern of ['syscall', 'write$', '^net/http\\.', 'sync|poll', 'no such function']) {
    await search(page, pattern);
    const text = await found(page), matched = (await shown(page)).filter(f => f.isFound);
    const expected = share(new RegExp(pattern));
    check(`the share of ${pattern}`, Math.abs(parseFloat(text) - expected) < 0.1, [text, expected]);
    check(`the frames of ${pattern}`, matched.every(f => new RegExp(pattern).test(f.name)) && matched.length > 0 === expected > 0, matched.length);
    if (pattern === 'sync|poll') await page.shot('flame-graph-search');
    await page.key('Escape');
    check('Escape ends the search', await found(page) === '' && (await shown(page)).every(f => !f.isFound));
  }
  await search(page, 'a(');
  check('a wrong expression is refused', await found(page) === 'not a regular expression', await found(page));
  await page.key('Escape');

  // Zoom: a frame gets the whole width, with those below it.
  await page.click(...middle(wide));
  await page.frame();
  const zoomed = await shown(page), [it] = zoomed.filter(f => f.isFocused);
  check('a click zooms', it.name === wide.name && Math.abs(it.width - 1200) < 0.01 && it.x === 0, it);
  check('others are hidden', zoomed.length < before.length && zoomed.every(f => f.x >= -0.01 && f.x + f.width < 1200.1), zoomed.length);
  check('frames below have the whole width', zoomed.filter(f => f.y > it.y).every(f => f.width === 1200));
  await page.shot('flame-graph-zoom');
  await page.key('Escape');
  check('Escape resets', JSON.stringify((await shown(page)).map(f => f.name)) === JSON.stringify(before.map(f => f.name)));
  await page.click(...middle(wide));
  const button = await page.eval("(({ x, y, width, height }) => [x + width / 2, y + height / 2])(document.querySelector('button').getBoundingClientRect())");
  await page.click(...button);
  check('the button resets', (await shown(page)).length === before.length);

  // The keyboard alone.
  await page.load(loaded);
  await page.eval("document.querySelector('[tabindex=\"0\"]').focus()");
  check('the first frame has the focus', (await focused(page)).startsWith('all ('));
  await page.key('ArrowUp');
  const child = (await shown(page)).find(f => f.isFocused);
  check('up is the widest frame above', child.y === before[0].y - 17 && before.every(f => f.y !== child.y || f.width <= child.width), child);
  await page.key('ArrowRight');
  const right = (await shown(page)).find(f => f.isFocused);
  await page.key('ArrowLeft');
  const left = (await shown(page)).find(f => f.isFocused);
  check('right and left', right.x >= child.x && left.y === child.y && (right.x === child.x || left.x <= right.x), [child, right, left]);
  await page.key('Enter');
  check('Enter zooms', (await shown(page)).find(f => f.isFocused).width === 1200);
  await page.key('ArrowDown');
  check('down is the caller', (await focused(page)).startsWith('all ('));
  await page.key('Escape');
  check('the same again', (await shown(page)).length === before.length);
  check('no errors', page.errors.length === 0, page.errors);
  check('no network', page.requests.every(url => url.startsWith('file://')), page.requests);
});
