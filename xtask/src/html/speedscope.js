'use strict';
// Drives headless Chromium: opens a profile in speedscope, and checks its sandwich view against the folded stacks.
// usage: node drive.js CHROMIUM OUT SPEEDSCOPE PROFILE FOLDED
const fs = require('fs');
const path = require('path');
const { check, open, run } = require('./browser.js');

const [chromium, out, speedscope, profile, folded] = process.argv.slice(2);

/** The nanoseconds of each function that is the innermost one. */
const expected = new Map();
for (const line of fs.readFileSync(folded, 'utf8').trimEnd().split('\n')) {
  const at = line.lastIndexOf(' ');
  const leaf = line.slice(line.lastIndexOf(';', at) + 1, at);
  expected.set(leaf, (expected.get(leaf) ?? 0) + Number(line.slice(at + 1)));
}

/** Nanoseconds of a text such as `5.80ms (5.7%)`. */
function nanos(text) {
  const [, number, unit] = text.match(/^([\d.]+)(ns|µs|ms|s) /);
  return number * { ns: 1, 'µs': 1e3, ms: 1e6, s: 1e9 }[unit];
}

/** Waits until the page has this. */
const until = (page, condition) => page.eval(`new Promise(done => {
  const look = () => (${condition}) ? done(1) : requestAnimationFrame(look);
  look();
})`);

run(chromium, async browser => {
  const page = await open(browser, out);
  // As its own command does: it loads a script that has the file.
  const script = path.resolve(out, 'profile.js');
  const bytes = fs.readFileSync(profile).toString('base64');
  fs.writeFileSync(script, `speedscope.loadFileFromBase64(${JSON.stringify(path.basename(profile))}, ${JSON.stringify(bytes)})`);
  await page.load(`file://${path.resolve(speedscope)}/index.html#localProfilePath=${script}`);
  await until(page, "document.title !== 'speedscope'");
  check('the name of the profile', await page.eval("document.title.startsWith('shop.trace')"));
  await page.shot('speedscope');
  await page.key('3', { code: 'Digit3', windowsVirtualKeyCode: 51 });
  await until(page, "document.body.innerText.includes('Symbol Name')");
  const rows = await page.eval("[...document.querySelectorAll('tr')].map(row => [...row.querySelectorAll('td')].map(cell => cell.innerText)).filter(row => row.length >= 3)");
  const self = new Map();
  for (const [, own, name] of rows) self.set(name.trim(), (self.get(name.trim()) ?? 0) + nanos(own));
  const worst = [...expected].filter(([name, ns]) => !(Math.abs(self.get(name) - ns) <= ns * 0.01));
  check('functions and their own time', expected.size > 10 && worst.length === 0, worst.map(([name, ns]) => [name, ns, self.get(name)]));
  check('other functions have no time of their own', [...self].every(([name, ns]) => ns === 0 || expected.has(name)));
  check('no errors', page.errors.length === 0, page.errors);
  await page.shot('speedscope-sandwich');
});
