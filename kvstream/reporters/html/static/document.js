"use strict";
/* The text: shades what memory kept, draws the map, goes to citations. */
(() => {
  const data = kv.data.document;
  if (!data) return;
  const LEVELS = 8;
  const texts = [...document.querySelectorAll("#text .t")];
  const sections = [...document.querySelectorAll("#text section")];
  const originals = texts.map((node) => node.textContent);
  const tokens = {
    text: kv.unpack(data.texts, true),
    start: kv.unpack(data.starts),
    length: kv.unpack(data.lengths),
    ordinal: kv.unpack(data.ordinals, true),
  };
  const count = tokens.text.length;
  const firstToken = new Array(texts.length + 1).fill(count);
  for (let i = count - 1; i >= 0; i--) firstToken[tokens.text[i]] = i;
  for (let t = texts.length - 1; t >= 0; t--) {
    firstToken[t] = Math.min(firstToken[t], firstToken[t + 1]);
  }
  const shadings = data.shadings.map((shading) => ({
    ...shading,
    counts: kv.unpack(shading.counts),
    heads: shading.heads && shading.heads.map((layer) => layer.map((h) => kv.unpack(h, true))),
  }));

  const by = (name) => document.getElementById(name);
  const controls = {
    first: by("first"), second: by("second"), layer: by("layer"), head: by("head"),
  };
  const mode = () => {
    const chosen = document.querySelector("input[name=mode]:checked");
    return chosen ? chosen.value : "first";
  };

  /** For each token how many of the chosen heads hold it, and how many heads these are. */
  const held = (shading) => {
    const layer = controls.layer.value, head = controls.head.value;
    const whole = shading.sizes.reduce((sum, size) => sum + size, 0);
    if (layer === "" || !shading.heads) return { counts: shading.counts, of: whole };
    const place = Number(layer);
    const chosen = shading.heads[Math.min(place, shading.heads.length - 1)];
    const lists = head === "" ? chosen : [chosen[Math.min(Number(head), chosen.length - 1)]];
    const counts = new Array(count).fill(0);
    for (const list of lists) for (const token of list) counts[token]++;
    return { counts, of: lists.length };
  };

  let view = null;
  let version = 0;

  const chosen = () => {
    const first = shadings[Number(controls.first ? controls.first.value : 0)];
    const second = controls.second ? shadings[Number(controls.second.value)] : null;
    const how = mode();
    const own = held(first), other = second && held(second);
    if (how === "only" || how === "other") {
      const [keep, drop] = how === "only" ? [own, other] : [other, own];
      const [one, two] = how === "only" ? [first, second] : [second, first];
      const counts = keep.counts.map((c, i) => (drop.counts[i] ? 0 : c));
      return {
        panes: [{ counts, of: keep.of, only: true }],
        told: `kept by ${one.name}, not by ${two.name}`,
      };
    }
    if (how === "both") {
      return { panes: [own, other], told: `kept by ${first.name}`, also: `by ${second.name}` };
    }
    if (how === "second") return { panes: [other], told: `kept by ${second.name}` };
    return { panes: [own], told: shadings.length > 1 ? `kept by ${first.name}` : "kept" };
  };

  const marks = new Map();  // text -> its citations
  data.cited.forEach((place, index) => {
    if (!place) return;
    const [text, start, length] = place;
    if (!marks.has(text)) marks.set(text, []);
    marks.get(text).push({ start, end: start + length, index });
  });

  const level = (share) => Math.max(1, Math.round(share * LEVELS));

  /** Writes a text anew: plain, shaded and cited parts one after the other. */
  const write = (node, text, pane) => {
    const content = originals[text];
    const parts = document.createDocumentFragment();
    const cited = (marks.get(text) || []).slice().sort((a, b) => a.start - b.start);
    let token = firstToken[text], place = 0;
    const last = firstToken[text + 1];
    const plain = (target, end) => {
      if (end > place) target.append(content.slice(place, end));
      place = Math.max(place, end);
    };
    /** Tokens from here to `end`, in `target`. */
    const fill = (target, end) => {
      while (token < last) {
        const start = tokens.start[token], until = start + tokens.length[token];
        if (start >= end) break;
        const stop = Math.min(until, end);
        if (pane.counts[token] && tokens.length[token] && stop > place) {
          plain(target, start);
          const share = pane.counts[token] / pane.of;
          const shade = kv.element("span", {
            class: `k k${level(share)}${pane.only ? " only" : ""}`,
            "data-token": token,
            title: `${pane.counts[token]} of ${pane.of} heads keep token `
              + kv.number(tokens.ordinal[token]),
          }, content.slice(place, stop));
          place = stop;
          target.append(shade);
        }
        if (until > end) break;
        token++;
      }
      plain(target, end);
    };
    for (const mark of cited) {
      if (mark.end <= place) continue;
      fill(parts, mark.start);
      const box = kv.element("mark", { "data-cite": mark.index });
      fill(box, mark.end);
      parts.append(box);
    }
    fill(parts, content.length);
    node.replaceChildren(parts);
  };

  const textsOf = sections.map(() => []);
  texts.forEach((node, index) => {
    textsOf[sections.indexOf(node.closest("section"), 0)].push(index);
  });
  const drawn = new Array(sections.length).fill(-1);

  const render = (index) => {
    if (drawn[index] === version) return;
    drawn[index] = version;
    const two = view.panes.length > 1;
    sections[index].classList.toggle("two", two);
    for (const text of textsOf[index]) {
      const node = texts[text];
      let beside = node.nextElementSibling;
      if (!beside || !beside.classList.contains("t2")) beside = null;
      write(node, text, view.panes[0]);
      if (two) {
        if (!beside) {
          beside = kv.element("p", { class: "t2", dir: "auto" });
          node.after(beside);
        }
        write(beside, text, view.panes[1]);
      } else if (beside) beside.remove();
    }
  };

  const near = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const index = Number(entry.target.dataset.index);
      if (entry.isIntersecting) { near.add(index); render(index); }
      else near.delete(index);
    }
    follow();
  }, { rootMargin: "600px 0px" });

  const status = by("status"), names = by("rows");
  const swatches = document.querySelectorAll(".scale .k");
  const update = () => {
    version++;
    view = chosen();
    for (const index of near) render(index);
    const amount = (pane) => pane.counts.reduce((sum, c) => sum + (c > 0), 0);
    const [first, second] = view.panes.map(amount);
    for (const swatch of swatches) swatch.classList.toggle("only", Boolean(view.panes[0].only));
    status.textContent = `${kv.number(first)} of ${kv.number(data.read)} tokens `
      + `(${kv.share(first, data.read)}) ${view.told}`
      + (view.also ? `, ${kv.number(second)} (${kv.share(second, data.read)}) ${view.also}` : "");
    picture = null;
    draw();
  };

  /* The map: one row for all heads, one for each layer; of several readings a row each, and one for
     what only one of them kept where that is shown. */
  const canvas = by("map"), slider = by("place"), readout = by("readout");
  const ALL = 22;

  const rows = () => {
    const layer = controls.layer.value;
    if (shadings.length > 1) {
      const each = shadings.map((s) => ({ name: s.name, height: ALL, ...held(s) }));
      const [pane] = view.panes;
      return pane.only ? [{ name: view.told, height: ALL, ...pane }, ...each] : each;
    }
    const only = shadings[0];
    const made = [{ name: "all", height: ALL, ...held(only) }];
    if (only.heads && (layer === "" || only.sizes[Number(layer)] > 1)) {
      const lists = layer === "" ? only.heads.map((l) => l) : only.heads[Number(layer)].map((h) => [h]);
      const height = Math.max(2, Math.min(7, Math.floor(72 / lists.length)));
      for (const list of lists) {
        const counts = new Array(count).fill(0);
        for (const head of list) for (const token of head) counts[token] = 1;
        made.push({ height, counts, of: 1 });
      }
    }
    return made;
  };

  /** The map without the mark of where the page is, which alone moves while it scrolls. */
  let picture = null;
  const paintMap = () => {
    const width = canvas.clientWidth, made = rows();
    const height = made.reduce((sum, row) => sum + row.height + 2, -2);
    const ratio = devicePixelRatio || 1;
    picture = kv.element("canvas");
    picture.width = canvas.width = width * ratio;
    picture.height = canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    const paint = picture.getContext("2d");
    paint.scale(ratio, ratio);
    const bins = Math.max(1, Math.min(data.read, Math.floor(width / 2)));
    const base = kv.color("--map");
    if (shadings.length > 1) names.textContent = `rows: ${made.map((row) => row.name).join(", ")}`;
    let top = 0;
    for (const row of made) {
      paint.globalAlpha = 1;
      paint.fillStyle = base;
      paint.fillRect(0, top, width, row.height);
      const sums = new Array(bins).fill(0);
      for (let i = 0; i < count; i++) {
        if (row.counts[i]) sums[Math.floor((tokens.ordinal[i] * bins) / data.read)]++;
      }
      paint.fillStyle = kv.color(row.only ? "--only" : "--kept");
      sums.forEach((sum, bin) => {
        if (!sum) return;
        const from = Math.ceil((bin * data.read) / bins);
        const size = Math.max(1, Math.ceil(((bin + 1) * data.read) / bins) - from);
        paint.globalAlpha = 0.12 + 0.88 * Math.sqrt(Math.min(1, sum / size));
        paint.fillRect((bin * width) / bins, top, width / bins + 0.3, row.height);
      });
      top += row.height + 2;
    }
    paint.globalAlpha = 1;
    paint.fillStyle = kv.color("--cite");
    for (const place of data.cited) {
      if (!place) continue;
      const x = (ordinalAt(place[0], place[1]) / data.read) * width;
      paint.fillRect(Math.max(0, Math.min(width - 2, x - 1)), 0, 2, height);
    }
  };

  const draw = () => {
    if (!picture) paintMap();
    const ratio = devicePixelRatio || 1;
    const width = picture.width / ratio, height = picture.height / ratio;
    const paint = canvas.getContext("2d");
    paint.setTransform(1, 0, 0, 1, 0, 0);
    paint.clearRect(0, 0, canvas.width, canvas.height);
    if (picture.width && picture.height) paint.drawImage(picture, 0, 0);
    paint.scale(ratio, ratio);
    const x = (Number(slider.value) / Math.max(1, data.read - 1)) * width;
    paint.strokeStyle = kv.color("--ink");
    paint.lineWidth = 1.5;
    paint.strokeRect(Math.max(1, Math.min(width - 7, x - 3)), 0.75, 6, height - 1.5);
  };

  /** The token of the text that is at, or follows, a place in a shown text. */
  const ordinalAt = (text, start) => {
    let token = firstToken[text];
    while (token < firstToken[text + 1] && tokens.start[token] < start) token++;
    return tokens.ordinal[Math.min(token, count - 1)] || 0;
  };

  /** The first kept token at or behind a place in the text; `count` where there is none. */
  const tokenFrom = (ordinal) => {
    let low = 0, high = count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tokens.ordinal[middle] < ordinal) low = middle + 1; else high = middle;
    }
    return low;
  };

  const around = (ordinal) => {
    const reach = Math.max(32, Math.round(data.read / 200));
    const from = Math.max(0, ordinal - reach), to = Math.min(data.read, ordinal + reach);
    let kept = 0;
    const counts = view.panes[0].counts;
    for (let i = tokenFrom(from); i < count && tokens.ordinal[i] < to; i++) kept += counts[i] > 0;
    return kv.share(kept, to - from);
  };

  const tell = () => {
    const ordinal = Number(slider.value);
    const words = `token ${kv.number(ordinal)} of ${kv.number(data.read)}, `
      + `${around(ordinal)} kept around it`;
    readout.textContent = words;
    slider.setAttribute("aria-valuetext", words);
  };

  let moving = 0;  // by the slider: scrolling must not move it back
  slider.addEventListener("input", () => {
    moving = Date.now();
    show(texts[tokens.text[Math.min(tokenFrom(Number(slider.value)), count - 1)]]);
    tell();
    draw();
  });

  const follow = () => {
    if (Date.now() - moving < 400 || !near.size || !count) return;
    const line = by("tools").getBoundingClientRect().bottom + 1;
    for (const index of [...near].sort((a, b) => a - b)) {
      const box = sections[index].getBoundingClientRect();
      const own = textsOf[index];
      if (box.bottom < line || !own.length) continue;
      const first = own.find((t) => texts[t].getBoundingClientRect().bottom >= line) ?? own[0];
      slider.value = ordinalAt(first, 0);
      tell();
      draw();
      return;
    }
  };
  let waiting = false;
  addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; follow(); });
  }, { passive: true });

  const show = (node) => {
    const section = node.closest("section");
    render(Number(section.dataset.index));
    node.scrollIntoView({ block: "center" });
  };

  for (const link of document.querySelectorAll("a[data-cite]")) {
    const place = data.cited[Number(link.dataset.cite)];
    if (!place) continue;
    link.addEventListener("click", (event) => {
      event.preventDefault();
      moving = Date.now();
      const node = texts[place[0]];
      const section = node.closest("section");
      render(Number(section.dataset.index));
      const mark = node.querySelector(`mark[data-cite="${link.dataset.cite}"]`) || node;
      for (const other of document.querySelectorAll("mark.here")) other.classList.remove("here");
      mark.classList.add("here");
      mark.setAttribute("tabindex", "-1");
      mark.scrollIntoView({ block: "center" });
      // Sections above may have got their real height by now.
      requestAnimationFrame(() => mark.scrollIntoView({ block: "center" }));
      mark.focus({ preventScroll: true });
      slider.value = ordinalAt(place[0], place[1]);
      tell();
      draw();
    });
  }

  by("text").addEventListener("click", (event) => {
    const shade = event.target.closest("[data-token]");
    if (shade) readout.textContent = shade.getAttribute("title");
  });

  /* Which heads. */
  const fillHeads = () => {
    const layer = controls.layer.value;
    controls.head.replaceChildren(kv.element("option", { value: "" }, "all heads"));
    const sizes = layer === "" ? 0 : Math.max(...shadings.map((s) => s.sizes[Number(layer)] || 0));
    for (let head = 0; head < sizes; head++) {
      controls.head.append(kv.element("option", { value: head }, `head ${head}`));
    }
    controls.head.disabled = layer === "" || sizes < 2;
  };
  controls.layer.append(kv.element("option", { value: "" }, "all layers"));
  if (shadings.every((s) => s.heads)) {
    shadings[0].layers.forEach((layer, place) => {
      controls.layer.append(kv.element("option", { value: place }, `layer ${layer}`));
    });
  } else controls.layer.disabled = true;
  fillHeads();
  controls.layer.addEventListener("change", () => { fillHeads(); update(); });
  controls.head.addEventListener("change", update);
  for (const control of [controls.first, controls.second]) {
    if (control) control.addEventListener("change", update);
  }
  for (const radio of document.querySelectorAll("input[name=mode]")) {
    radio.addEventListener("change", update);
  }

  sections.forEach((section, index) => {
    section.dataset.index = index;
    watcher.observe(section);
  });
  slider.max = Math.max(0, data.read - 1);
  by("viewer").hidden = false;
  update();
  tell();
  addEventListener("resize", () => { picture = null; draw(); });
  kv.recolored(() => {
    // On paper all of it is shaded; of a book of its own what was shaded before, as now chosen.
    if (document.documentElement.classList.contains("print")) {
      sections.forEach((section, index) => {
        if (sections.length < 200 || drawn[index] >= 0) render(index);
      });
    }
    picture = null;
    draw();
  });
})();
