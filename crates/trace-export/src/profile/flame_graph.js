'use strict';
(() => {
  const svg = document.currentScript.ownerSVGElement;
  const all = svg.getElementById('frames'), detail = svg.getElementById('detail');
  const WIDTH = svg.viewBox.baseVal.width, ROW = 17;
  const number = (element, name) => Number(element.getAttribute(name));
  // The outermost frame first; frames above others come after them.
  const frames = Array.from(all.children, g => {
    const [title, rect, text] = g.children;
    const x = number(rect, 'x'), width = number(rect, 'width');
    const name = title.textContent.replace(/ \([^()]*\)$/, '');
    return { g, rect, text, x, end: x + width, y: number(rect, 'y'), name, title: title.textContent };
  });
  const of = new Map(frames.map(frame => [frame.g, frame]));
  const root = frames[0];
  if (!root) return;
  // Positions are rounded to thousandths of a pixel.
  const holds = (outer, inner) => outer.x - 0.002 <= inner.x && inner.end <= outer.end + 0.002;
  let zoomed = root, focused = root;

  const HTML = 'http://www.w3.org/1999/xhtml';
  const place = document.createElementNS(svg.namespaceURI, 'foreignObject');
  Object.entries({ x: 6, y: 24, width: 560, height: 24 }).forEach(([name, value]) => place.setAttribute(name, value));
  const make = (name, attributes, parent) => {
    const element = document.createElementNS(HTML, name);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    return parent.appendChild(element);
  };
  const form = make('form', {}, place);
  const query = make('input', { type: 'search', placeholder: 'Search: regular expression (/)', 'aria-label': 'Search', spellcheck: 'false' }, form);
  const reset = make('button', { type: 'button', disabled: '', title: 'Escape' }, form);
  reset.textContent = 'Reset zoom';
  const found = make('output', { id: 'found' }, form);
  svg.insertBefore(place, all);

  function zoom(to) {
    zoomed = to;
    const scale = WIDTH / (to.end - to.x);
    for (const frame of frames) {
      const isBelow = frame.y > to.y && holds(frame, to);
      const isAway = !isBelow && !(frame.y <= to.y && holds(to, frame));
      frame.g.classList.toggle('away', isAway);
      frame.g.classList.toggle('below', isBelow);
      if (isAway) continue;
      const x = isBelow ? 0 : (frame.x - to.x) * scale;
      const width = isBelow ? WIDTH : (frame.end - frame.x) * scale;
      const fitting = Math.max(0, Math.floor((width - 6) / 6.7));
      frame.rect.setAttribute('x', x);
      frame.rect.setAttribute('width', width);
      frame.text.setAttribute('x', x + 3);
      frame.text.textContent = fitting > 2 ? Array.from(frame.name).slice(0, fitting).join('') : '';
    }
    reset.disabled = to === root;
  }

  function search() {
    let pattern = null;
    query.classList.remove('invalid');
    try {
      if (query.value) pattern = new RegExp(query.value);
    } catch {
      query.classList.add('invalid');
    }
    const matched = frames.filter(frame => {
      const is = pattern !== null && frame !== root && pattern.test(frame.name);
      frame.g.classList.toggle('found', is);
      return is;
    });
    // Of frames above each other, the outermost counts: rows from the lowest on, and each part once.
    let sum = 0, end = -1;
    for (const { x, end: to } of matched.sort((a, b) => a.x - b.x || b.end - a.end)) {
      sum += Math.max(0, to - Math.max(x, end));
      end = Math.max(end, to);
    }
    const share = sum * 100 / (root.end - root.x);
    found.textContent = pattern === null ? (query.value ? 'not a regular expression' : '')
      : `${share.toFixed(2)} % in ${matched.length} frame${matched.length === 1 ? '' : 's'}`;
  }

  const show = frame => { detail.textContent = frame ? frame.title : ' '; };
  const hit = event => of.get(event.target.closest('#frames > g'));
  function focus(frame) {
    if (!frame) return;
    focused.g.setAttribute('tabindex', '-1');
    focused = frame;
    frame.g.setAttribute('tabindex', '0');
    frame.g.focus();
  }
  /** The visible frame nearest to the middle of this one, in the row `rows` above it. */
  function beside(frame, rows, is) {
    const y = frame.y - rows * ROW, middle = frame.x + (frame.end - frame.x) / 2;
    const near = f => Math.max(f.x - middle, middle - f.end, 0);
    return frames.filter(f => f.y === y && f !== frame && !f.g.classList.contains('away') && is(f))
      .sort((a, b) => near(a) - near(b) || (b.end - b.x) - (a.end - a.x))[0];
  }
  const widest = frame => frames.filter(f => f.y === frame.y - ROW && holds(frame, f) && !f.g.classList.contains('away'))
    .sort((a, b) => (b.end - b.x) - (a.end - a.x))[0];
  const moves = {
    ArrowUp: widest,
    ArrowDown: frame => beside(frame, -1, f => holds(f, frame)),
    ArrowLeft: frame => beside(frame, 0, f => f.end <= frame.x + 0.002),
    ArrowRight: frame => beside(frame, 0, f => f.x >= frame.end - 0.002),
    Home: () => zoomed,
  };

  for (const { g, title } of frames) {
    g.setAttribute('tabindex', '-1');
    g.setAttribute('role', 'button');
    g.setAttribute('aria-label', title);
  }
  root.g.setAttribute('tabindex', '0');
  all.addEventListener('click', event => {
    const frame = hit(event);
    if (frame) { focus(frame); zoom(frame); }
  });
  all.addEventListener('mouseover', event => show(hit(event)));
  all.addEventListener('mouseout', () => show(null));
  all.addEventListener('focusin', event => show(hit(event)));
  reset.addEventListener('click', () => zoom(root));
  query.addEventListener('input', search);
  form.addEventListener('submit', event => event.preventDefault());
  document.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const inField = event.target === query;
    if (event.key === 'Escape') {
      if (inField) { query.value = ''; search(); focus(focused); } else zoom(root);
    } else if (inField) {
      if (event.key === 'Enter') focus(frames.find(f => f.g.classList.contains('found') && !f.g.classList.contains('away')));
      else return;
    } else if (event.key === '/') {
      query.focus();
    } else if ((event.key === 'Enter' || event.key === ' ') && of.has(event.target)) {
      zoom(of.get(event.target));
    } else if (event.key in moves && event.target !== reset) {
      focus(moves[event.key](focused));
    } else return;
    event.preventDefault();
  });
})();
