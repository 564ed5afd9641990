// Draws the curves of a report: hover for values, click the legend to hide a curve.
"use strict";
(() => {
  const SPACE = "http://www.w3.org/2000/svg";
  const WIDTH = 540, HEIGHT = 330, LEFT = 58, RIGHT = 20, TOP = 30, BOTTOM = 42;
  const { styles: STYLES, start: START, margin: MARGIN, figures: FIGURES } =
    JSON.parse(document.getElementById("figures").textContent);
  const MARKERS = {
    o: (x, y) => `M${x - 3.4} ${y}a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0-6.8 0Z`,
    s: (x, y) => `M${x - 3} ${y - 3}h6v6h-6Z`,
    "^": (x, y) => `M${x} ${y - 4}l4 7h-8Z`,
    D: (x, y) => `M${x} ${y - 4.4}l4.4 4.4l-4.4 4.4l-4.4-4.4Z`,
    v: (x, y) => `M${x} ${y + 4}l4-7h-8Z`,
    X: (x, y) => `M${x - 3.2} ${y - 3.2}l6.4 6.4M${x - 3.2} ${y + 3.2}l6.4-6.4`,
  };
  const star = (x, y) => "M" + Array.from({ length: 10 }, (_, i) => {
    const angle = (Math.PI * i) / 5, radius = i % 2 ? 3.4 : 8;
    return `${round(x + radius * Math.sin(angle))} ${round(y - radius * Math.cos(angle))}`;
  }).join("L") + "Z";
  const dashes = (curve) => STYLES[curve.style].dashes;
  const marker = (curve, x, y) => MARKERS[STYLES[curve.style].marker](x, y);
  const UNITS = [[10800, 3600, "hours", "h"], [180, 60, "minutes", "min"], [0, 1, "seconds", "s"]];

  const node = (made, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const html = (name, attributes = {}, ...children) =>
    node(document.createElement(name), attributes, children);
  const svg = (name, attributes = {}, ...children) =>
    node(document.createElementNS(SPACE, name), attributes, children);
  const minus = (text) => text.replace("-", "−");
  const round = (value) => value.toFixed(1);

  function short(value) {
    const size = Math.abs(value);
    if (size >= 1e6) return minus(`${+(value / 1e6).toPrecision(4)}M`);
    if (size >= 1e4) return minus(`${+(value / 1e3).toPrecision(4)}K`);
    return minus(`${+value.toPrecision(4)}`);
  }

  function nice(low, high, count) {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
    const ticks = [];
    for (let i = Math.ceil(low / step); i * step <= high; i++) ticks.push(i * step);
    return ticks;
  }

  function niceLogarithmic(low, high) {
    for (const digits of [[1], [1, 3], [1, 2, 5]]) {
      const ticks = [];
      for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++)
        for (const digit of digits) ticks.push(+`${digit}e${power}`);
      const inside = ticks.filter((tick) => tick >= low && tick <= high);
      if (inside.length > 3) return inside;
    }
    return nice(low, high, 5);
  }

  // The range of the visible curves; the vertical one without their start, a steep rise.
  function ranges(curves, axis, panel) {
    const right = Math.max(...curves.map((curve) => curve.x[axis].at(-1)));
    const values = curves.flatMap((curve) =>
      curve.y[panel.metric].filter((_, i) => curve.x[axis][i] >= START * right));
    if (axis === "steps") values.push(...curves.filter((curve) => panel.metric in curve.paper)
      .map((curve) => curve.paper[panel.metric][1]));
    const usable = values.filter((value) => !panel.log || value > 0);
    let low = Math.min(...usable), high = Math.max(...usable);
    if (panel.log) {
      const margin = Math.max((high / low) ** MARGIN, 1.02);
      return [right, low / margin, high * margin];
    }
    const margin = MARGIN * (high - low) || Math.abs(high) * 0.05 || 1;
    return [right, low - margin, high + margin];
  }

  function sample(curve) {
    return svg("svg", { width: 44, height: 12, "aria-hidden": "true" },
      svg("path", { class: `curve s${curve.style}`, d: "M1 6H43", "stroke-dasharray": dashes(curve) }),
      svg("path", { class: `markers s${curve.style}`, d: marker(curve, 22, 6) }));
  }

  function drawPanel(place, figure, panel, axis, hidden, name) {
    const curves = figure.curves.filter((curve) => !hidden.has(curve.label));
    const tip = html("div", { class: "tip", hidden: "" });
    const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: 0,
      "aria-label": `${name}: ${panel.title} against ${axis}` });
    place.replaceChildren(picture, tip);
    picture.append(svg("text", { class: "title", x: LEFT, y: 17 }, panel.title));
    if (!curves.length) return;
    const [right, low, high] = ranges(curves, axis, panel);
    const [, unit, unitName, unitShort] = axis === "time" ? UNITS.find(([least]) => right >= least) : [0, 1, "steps"];
    const scale = panel.log ? Math.log : (value) => value;
    const toX = (value) => LEFT + (value / right) * (WIDTH - LEFT - RIGHT);
    const toY = (value) =>
      TOP + ((scale(high) - scale(value)) / (scale(high) - scale(low))) * (HEIGHT - TOP - BOTTOM);
    const bottom = HEIGHT - BOTTOM;

    for (const tick of panel.log ? niceLogarithmic(low, high) : nice(low, high, 5)) {
      const y = round(toY(tick));
      picture.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }),
        svg("text", { class: "quiet", x: LEFT - 7, y: +y + 4, "text-anchor": "end" }, short(tick)));
    }
    for (const tick of nice(0, right / unit, 5)) {
      const x = round(toX(tick * unit));
      picture.append(svg("line", { class: "frame", x1: x, x2: x, y1: bottom, y2: bottom + 4 }),
        svg("text", { class: "quiet", x, y: bottom + 17, "text-anchor": "middle" }, short(tick)));
    }
    picture.append(
      svg("path", { class: "frame", d: `M${LEFT} ${TOP}V${bottom}H${WIDTH - RIGHT}` }),
      svg("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 5, "text-anchor": "middle" }, unitName));

    const clip = `clip-${name}-${panel.metric}`;
    picture.append(svg("clipPath", { id: clip },
      svg("rect", { x: LEFT, y: TOP, width: WIDTH - LEFT - RIGHT + 4, height: bottom - TOP })));
    const inside = svg("g", { "clip-path": `url(#${clip})` });
    picture.append(inside);
    for (const curve of curves) {
      const points = curve.x[axis].map((x, i) => [round(toX(x)), round(toY(curve.y[panel.metric][i]))])
        .filter(([, y]) => Number.isFinite(+y));
      const every = Math.max(1, Math.round(points.length / 9));
      const offset = Math.floor(((curve.style + 0.5) * every) / STYLES.length);
      const marked = points.filter((_, i) => i % every === offset);
      inside.append(
        svg("path", { class: `curve s${curve.style}`, "data-label": curve.label,
          "stroke-dasharray": dashes(curve), d: "M" + points.map((p) => p.join(" ")).join("L") }),
        svg("path", { class: `markers s${curve.style}`,
          d: marked.map(([x, y]) => marker(curve, +x, +y)).join("") }));
    }
    for (const curve of curves) {
      if (axis !== "steps" || !(panel.metric in curve.paper)) continue;
      const [step, value] = curve.paper[panel.metric];
      picture.append(svg("path", { class: `star s${curve.style}`, d: star(toX(step), toY(value)) },
        svg("title", {}, `${curve.label}, the paper's: ${short(value)}`)));
    }
    const cross = svg("g", { visibility: "hidden" });
    inside.append(cross);

    // The values of all curves at the point of the longest one that is nearest.
    const longest = curves.reduce((a, b) => (b.x[axis].at(-1) > a.x[axis].at(-1) ? b : a)).x[axis];
    const nearest = (list, value) => list.reduce(
      (best, x, i) => (Math.abs(x - value) < Math.abs(list[best] - value) ? i : best), 0);
    let at = longest.length - 1;
    function show(index) {
      at = Math.max(0, Math.min(longest.length - 1, index));
      const value = longest[at], x = round(toX(value));
      const heading = axis === "time" ? `${round(value / unit)} ${unitShort}` : `step ${value.toLocaleString("en")}`;
      cross.replaceChildren(svg("line", { class: "cross", x1: x, x2: x, y1: TOP, y2: bottom }));
      tip.replaceChildren(html("b", {}, heading));
      for (const curve of curves) {
        const own = curve.x[axis], i = nearest(own, value), y = curve.y[panel.metric][i];
        const over = value > own.at(-1);
        if (!over) cross.append(svg("circle", { class: `markers s${curve.style}`, cx: x, cy: round(toY(y)), r: 4 }));
        const text = over ? "ended" : minus(`${+y.toPrecision(4)}`);
        tip.append(html("div", {}, sample(curve), curve.label, html("span", {}, text)));
      }
      cross.setAttribute("visibility", "visible");
      tip.hidden = false;
      const ratio = picture.clientWidth / WIDTH, left = x * ratio;
      const flip = left + tip.offsetWidth + 14 > picture.clientWidth;
      tip.style.left = `${Math.max(0, flip ? left - tip.offsetWidth - 12 : left + 12)}px`;
      tip.style.top = `${(TOP + 6) * ratio}px`;
    }
    function hide() {
      cross.setAttribute("visibility", "hidden");
      tip.hidden = true;
    }
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * WIDTH;
      show(nearest(longest, ((x - LEFT) / (WIDTH - LEFT - RIGHT)) * right));
    });
    picture.addEventListener("pointerleave", hide);
    picture.addEventListener("blur", hide);
    picture.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      show(tip.hidden ? at : at + move);
    });
  }

  function draw(place, name, figure) {
    const hidden = new Set();
    let axis = "steps";
    const panels = figure.panels.map((panel) => [panel, html("div", { class: "panel" })]);
    const redraw = () =>
      panels.forEach(([panel, own]) => drawPanel(own, figure, panel, axis, hidden, name));
    const legend = figure.curves.map((curve) => {
      const button = html("button", { type: "button", "aria-pressed": "true", title: "hide or show this curve" },
        sample(curve), curve.label);
      button.addEventListener("click", () => {
        if (!hidden.delete(curve.label)) hidden.add(curve.label);
        button.setAttribute("aria-pressed", String(!hidden.has(curve.label)));
        redraw();
      });
      return button;
    });
    const axes = ["steps", "time"].map((wanted) => {
      const button = html("button", { type: "button", "aria-pressed": String(wanted === axis) }, wanted);
      button.addEventListener("click", () => {
        axis = wanted;
        axes.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
        redraw();
      });
      return button;
    });
    place.replaceChildren(
      html("div", { class: "controls" },
        html("div", { class: "legend", role: "group", "aria-label": "Curves" }, ...legend),
        html("div", { class: "axis", role: "group", "aria-label": "Horizontal axis" }, ...axes)),
      html("div", { class: "panels" }, ...panels.map(([, own]) => own)));
    redraw();
  }

  for (const place of document.querySelectorAll(".chart"))
    draw(place, place.dataset.figure, FIGURES[place.dataset.figure]);
})();
