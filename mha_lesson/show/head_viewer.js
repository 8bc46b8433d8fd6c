// The head viewer: words that look (left), words looked at (right), every head as a small map.
// Plain JavaScript for anywidget: no build, nothing from the network. Python sends the weights once;
// everything below is drawn from them here, so pointing at a word asks nobody.
//
// Three numbers are shared with Python: layer, head and word (the chosen one). The word under the
// mouse is shown too, but only while the mouse is there; it stays in this file.

const ROW = 22; // height of a word, in pixels
const MIDDLE = 120; // width of the lines between the columns
const FAINT = 0.1; // weights above this are drawn faintly for the words that are not chosen
const MAPS = 400; // width of a row of small maps, shared out among the heads

const STYLE = `
.mha-heads {color: var(--jp-ui-font-color1, inherit); font: 13px/1.4 var(--jp-ui-font-family, system-ui, sans-serif);
  --line: var(--line-on-light); padding: 2px;}
body[data-jp-theme-light="false"] .mha-heads, .vscode-dark .mha-heads {--line: var(--line-on-dark);}
.mha-heads .choices {display: flex; flex-wrap: wrap; gap: 4px 14px; align-items: baseline;}
.mha-heads select {font: inherit; color: inherit; border: 1px solid currentColor; border-radius: 3px;
  background: var(--jp-layout-color1, Canvas); padding: 1px 4px; margin-left: 4px;}
.mha-heads .says {margin: 6px 0; font-weight: 600;}
.mha-heads .parts {display: flex; flex-wrap: wrap; gap: 12px 28px; align-items: flex-start;}
.mha-heads .words {display: grid; grid-template-columns: max-content ${MIDDLE}px max-content;
  max-height: ${42 * ROW}px; overflow-y: auto; padding: 3px; scrollbar-gutter: stable;}
.mha-heads .heading {font-size: 12px; opacity: 0.8; height: ${ROW}px; white-space: nowrap;}
.mha-heads ul {list-style: none; margin: 0; padding: 0;}
.mha-heads li {height: ${ROW}px; line-height: ${ROW}px; box-sizing: border-box; white-space: nowrap;}
.mha-heads .looks {text-align: right;}
.mha-heads .looks li {padding: 0 6px; border-radius: 3px; cursor: pointer;}
.mha-heads .looks li.shown {background: var(--jp-layout-color2, #8884);}
.mha-heads .looks li[aria-selected="true"] {font-weight: 700; box-shadow: inset -3px 0 var(--line);}
.mha-heads .seen li {display: grid; grid-template-columns: minmax(40px, 1fr) 42px 50px; gap: 6px; padding-left: 6px;}
.mha-heads .seen .number {text-align: right; font-variant-numeric: tabular-nums;}
.mha-heads .seen .bar {height: 10px; margin-top: 6px; background: var(--line);}
.mha-heads .seen .best {-webkit-text-stroke: 0.5px;} /* bold that needs no more room: nothing moves */
.mha-heads .seen .best .bar {background: var(--best);}
.mha-heads svg {display: block; overflow: visible;}
.mha-heads svg path {fill: none; stroke: var(--line);}
.mha-heads svg .best {stroke: var(--best);}
.mha-heads svg .faint {stroke: currentColor; stroke-opacity: 0.18;}
.mha-heads table {border-collapse: separate; border-spacing: 4px;}
.mha-heads caption {text-align: left; font-size: 12px; opacity: 0.8; padding-left: 4px;}
.mha-heads th {font-weight: normal; font-size: 12px; padding: 0 2px; min-width: 12px; text-align: center;}
.mha-heads td {padding: 0; line-height: 0; cursor: pointer;}
.mha-heads td[aria-selected="true"] {outline: 3px solid var(--best);}
.mha-heads :focus-visible {outline: 2px solid currentColor; outline-offset: 1px;}
.mha-heads td:focus-visible {box-shadow: 0 0 0 5px currentColor;}
.mha-heads .help {font-size: 12px; opacity: 0.8; margin: 6px 0 0;}
`;

// ---------------------------------------------------------------- small helpers

/** An element with attributes and children; "text" sets its text. */
function make(tag, attributes = {}, ...children) {
  const inSvg = tag === "svg" || tag === "path";
  const made = inSvg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const range = (count) => [...Array(count).keys()];
const clamp = (value, count) => Math.min(Math.max(value, 0), count - 1);
const short = (text) => (text.length > 20 ? text.slice(0, 19) + "…" : text);
const middleOf = (row) => (row + 0.5) * ROW;
const curve = (from, to) =>
  `M0 ${middleOf(from)}C${MIDDLE / 2} ${middleOf(from)} ${MIDDLE / 2} ${middleOf(to)} ${MIDDLE} ${middleOf(to)}`;

/** Weights as Python packed them: 16 bits each, 65535 for a weight of 1. */
function readWeights(model) {
  const bytes = model.get("weights");
  const copy = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
  return new Uint16Array(copy);
}

// ---------------------------------------------------------------- the widget

function render({ model, el }) {
  const weights = readWeights(model);
  const [layers, heads, length, keys] = model.get("shape");
  const tokens = model.get("tokens");
  const sources = model.get("sources");
  const hasLayers = model.get("has_layers");
  let pointed = null; // the word under the mouse

  const layer = () => clamp(model.get("layer"), layers);
  const head = () => clamp(model.get("head"), heads);
  const word = () => clamp(model.get("word"), length);
  const headName = (l, h) => (hasLayers ? `Layer ${l}, head ${h}` : `Head ${h}`);

  /** The weights of one word in the chosen head, from 0 to 1. */
  function rowOf(query) {
    const start = ((layer() * heads + head()) * length + query) * keys;
    return Array.from(weights.subarray(start, start + keys), (value) => value / 65535);
  }

  /** Choose, and tell Python. */
  function choose(changes) {
    for (const [name, value] of Object.entries(changes)) model.set(name, value);
    model.save_changes();
  }

  // ---- the elements

  const selects = {};
  function makeSelect(name, count) {
    const options = range(count).map((index) => make("option", { value: index, text: index }));
    selects[name] = make("select", { "aria-label": name }, ...options);
    selects[name].addEventListener("change", (event) => choose({ [name]: Number(event.target.value) }));
    return make("label", { text: name }, selects[name]);
  }

  const choices = make("div", { class: "choices" });
  if (hasLayers) choices.append(makeSelect("layer", layers));
  choices.append(makeSelect("head", heads));

  const says = make("p", { class: "says", role: "status", "aria-live": "polite" });

  const lookers = tokens.map((token) =>
    make("li", { role: "option", "aria-label": token, title: token, text: short(token) }));
  const looks = make("ul", { class: "looks", role: "listbox", "aria-label": "the word that looks" }, ...lookers);

  const faint = make("path", { class: "faint" });
  const lines = sources.map(() => make("path"));
  const height = Math.max(length, keys) * ROW;
  const drawing = make("svg", { width: MIDDLE, height, "aria-hidden": "true" }, faint, ...lines);

  const rows = sources.map((source) => {
    const number = make("span", { class: "number", text: " " });
    const bar = make("span", { class: "bar", "aria-hidden": "true" });
    const item = make("li", { title: source }, make("span", { text: short(source) }), number, bar);
    return { item, number, bar };
  });
  const seen = make("ul", { class: "seen", "aria-label": "the words looked at" }, ...rows.map((row) => row.item));

  const words = make("div", { class: "words" },
    make("div", { class: "heading", style: "text-align:right;padding-right:6px", text: "this word …" }),
    make("div"),
    make("div", { class: "heading", style: "padding-left:6px", text: "… looks at" }),
    looks, drawing, seen);

  // ---- every head as a small map, all on one colour scale

  const cells = range(layers).map((l) => range(heads).map((h) => makeMap(l, h)));
  const ramp = model.get("ramp");
  const top = weights.reduce((most, value) => Math.max(most, value), 1);
  cells.flat().forEach((cell, index) => { cell.firstChild.src = mapPicture(index * length * keys); });

  function makeMap(l, h) {
    const wide = Math.min(Math.max(Math.floor(MAPS / heads), 20), 56);
    const size = `width:${wide}px;height:${wide}px`;
    // A large cell keeps sharp squares; where words outnumber pixels the browser takes the mean.
    const sharp = Math.max(length, keys) <= wide ? ";image-rendering:pixelated" : "";
    const picture = make("img", { alt: "", style: size + sharp });
    const cell = make("td", { role: "gridcell", "aria-label": headName(l, h), title: headName(l, h) }, picture);
    cell.addEventListener("click", () => { choose({ layer: l, head: h }); cell.focus(); });
    return cell;
  }

  /** One head's weights as the address of a picture, a pixel for each weight. (Hundreds of canvases
      on the page would slow down every later move of the mouse: the browser keeps a layer for each.) */
  function mapPicture(start) {
    const canvas = make("canvas", { width: keys, height: length });
    const image = new ImageData(keys, length);
    for (let i = 0; i < length * keys; i++) {
      const step = Math.round((255 * weights[start + i]) / top);
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = ramp.getUint8(3 * step + c);
      image.data[4 * i + 3] = 255;
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas.toDataURL();
  }

  const grid = make("table", { role: "grid", "aria-label": "every head, one small map each" },
    make("caption", { text: `every head${hasLayers ? " (a row is a layer)" : ""}; brighter = larger weight` }),
    make("tr", {}, ...(hasLayers ? [make("td")] : []),
      ...range(heads).map((h) => make("th", { scope: "col", text: h }))),
    ...cells.map((row, l) =>
      make("tr", {}, ...(hasLayers ? [make("th", { scope: "row", text: l })] : []), ...row)));

  // ---- drawing

  /** Where one word looks: lines, bars, numbers and the sentence. Runs at every move of the mouse. */
  function showWord() {
    const query = pointed ?? word();
    const row = rowOf(query);
    const best = row.indexOf(Math.max(...row));
    rows.forEach(({ item, number, bar }, key) => {
      const isBest = key === best && row[key] > 0;
      item.classList.toggle("best", isBest);
      number.firstChild.data = row[key].toFixed(3);
      bar.style.width = `${100 * row[key]}%`;
      lines[key].setAttribute("class", isBest ? "best" : "");
      lines[key].setAttribute("d", curve(query, key));
      lines[key].setAttribute("stroke-width", 0.6 + 7 * row[key]);
      lines[key].setAttribute("stroke-opacity", row[key] > 0 ? 0.15 + 0.85 * row[key] : 0);
    });
    lookers.forEach((item, index) => item.classList.toggle("shown", index === query));
    const where = row[best] > 0 ? `looks most at ${sources[best]}, ${row[best].toFixed(3)}` : "looks at no word";
    says.textContent = `${headName(layer(), head())}: ${tokens[query]} ${where}.`;
  }

  /** The chosen word: selected, and the one that the Tab key reaches. */
  function showChoice() {
    lookers.forEach((item, index) => {
      item.setAttribute("aria-selected", index === word());
      item.tabIndex = index === word() ? 0 : -1;
    });
    showWord();
  }

  /** The chosen head: its place among the small maps, its strong weights as faint lines. */
  function showHead() {
    for (const [l, row] of cells.entries()) {
      for (const [h, cell] of row.entries()) {
        const chosen = l === layer() && h === head();
        cell.setAttribute("aria-selected", chosen);
        cell.tabIndex = chosen ? 0 : -1;
      }
    }
    if (hasLayers) selects.layer.value = layer();
    selects.head.value = head();
    const strong = range(length).flatMap((query) =>
      rowOf(query).map((weight, key) => (weight > FAINT ? curve(query, key) : "")));
    faint.setAttribute("d", strong.join(""));
    showChoice();
  }

  // ---- mouse and keyboard

  const indexOf = (event) => lookers.indexOf(event.target.closest("li"));
  looks.addEventListener("pointerover", (event) => point(indexOf(event)));
  looks.addEventListener("pointerleave", () => point(-1));
  looks.addEventListener("click", (event) => indexOf(event) >= 0 && focusWord(indexOf(event)));

  function point(index) {
    pointed = index >= 0 ? index : null;
    showWord();
  }

  function focusWord(index) {
    pointed = null; // the keyboard wins over a mouse that rests somewhere
    choose({ word: index });
    lookers[index].focus();
  }

  /** Which place an arrow key leads to, or null if the key is another one. */
  function moved(key, back, forth, place, count) {
    const steps = { [back]: place - 1, [forth]: place + 1, Home: 0, End: count - 1 };
    return key in steps ? clamp(steps[key], count) : null;
  }

  looks.addEventListener("keydown", (event) => {
    const next = moved(event.key, "ArrowUp", "ArrowDown", word(), length);
    if (next === null) return;
    event.preventDefault();
    focusWord(next);
  });

  grid.addEventListener("keydown", (event) => {
    const nextHead = moved(event.key, "ArrowLeft", "ArrowRight", head(), heads);
    const nextLayer = moved(event.key, "ArrowUp", "ArrowDown", layer(), layers);
    if (nextHead === null && nextLayer === null) return;
    event.preventDefault();
    const goesSideways = nextHead !== null;
    choose(goesSideways ? { head: nextHead } : { layer: nextLayer });
    cells[layer()][head()].focus();
  });

  const root = make("div", { class: "mha-heads", role: "group", "aria-label": "attention heads" },
    make("style", { text: STYLE }), choices, says, make("div", { class: "parts" }, grid, words),
    make("p", { class: "help", text: "Point at a word to see where it looks; click it to keep it. Click a small " +
      "map to choose its head. Keyboard: Tab to the maps or to the words, then the arrow keys." }));
  const { line, best, line_on_dark: onDark } = model.get("colours");
  for (const [name, colour] of [["line-on-light", line], ["best", best], ["line-on-dark", onDark]]) {
    root.style.setProperty(`--${name}`, colour);
  }
  // In a notebook a plain key is a command ("d d" deletes the cell): here it stays in the widget.
  root.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey && !event.shiftKey) event.stopPropagation();
  });

  // ---- Python may choose as well

  const handlers = { "change:layer": showHead, "change:head": showHead, "change:word": showChoice };
  for (const [name, handler] of Object.entries(handlers)) model.on(name, handler);
  showHead();
  el.append(root);
  return () => {
    for (const [name, handler] of Object.entries(handlers)) model.off(name, handler);
  };
}

export default { render };
