/* What drawings that one can drag have in common: a plane of JSXGraph, points to drag, ellipses, numbers and sliders.

Colours are the theme's own, so that both of its schemes are served; nothing is said by colour alone. */
"use strict";

const drawing = {
  COLOURS: ["var(--lesson-first)", "var(--lesson-second)", "var(--lesson-third)"],
  INK: "var(--color-foreground-primary)",
  PALE: "var(--color-foreground-muted)",

  /** An element of the page with attributes, text and children. */
  element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  },

  number: value => (Number.isFinite(value) ? value.toFixed(3).replace("-", "−") : "∞"),

  percent: value => (Number.isFinite(value) ? `${(100 * value).toFixed(value < 0.1 ? 2 : 0)}\u00a0%` : "∞"),

  /** Empty the place of a drawing, and return what holds its planes and, next to them, its numbers. */
  parts(place, said) {
    const planes = this.element("div", { class: "planes" }), beside = this.element("div", { class: "beside" });
    place.replaceChildren(this.element("p", { class: "said" }, said), planes, beside);
    place.classList.add("drawn");
    return { planes, beside };
  },

  /** A plane between two corners, with its axes; a finger that misses every point scrolls the page. */
  plane(parent, id, label, [left, top, right, bottom], square = true) {
    const box = this.element("div", { class: square ? "plane" : "plane wide", id, role: "group", "aria-label": label });
    parent.append(this.element("figure", {}, box, this.element("figcaption", {}, label)));
    const board = JXG.JSXGraph.initBoard(box, {
      boundingbox: [left, top, right, bottom], keepaspectratio: square, axis: false, showCopyright: false,
      showNavigation: false, showInfobox: false, pan: { enabled: false }, zoom: { enabled: false }, browserPan: true,
      keyboard: { enabled: true, dx: 5, dy: 5, panShift: false }, resize: { enabled: true },
    });
    for (const end of [[1, 0], [0, 1]]) {
      board.create("line", [[0, 0], end], { ...this.still(this.PALE), strokeOpacity: 0.5 });
    }
    const scrolls = () => { box.style.touchAction = "pan-y"; };
    scrolls();
    board.on("up", scrolls);
    return board;
  },

  /** Attributes of what nobody drags. */
  still: colour => ({
    fixed: true, highlight: false, strokeColor: colour, strokeWidth: 1, tabindex: null, withLabel: false,
  }),

  /** A point that is dragged, or moved by the arrow keys. */
  handle(board, place, name, label, colour) {
    const point = board.create("point", place, {
      name, size: 6, strokeColor: colour, fillColor: colour, highlight: false, tabindex: 0, showInfobox: false,
      cssClass: "handle", aria: { enabled: true, label: `${label}; arrow keys move it`, live: "off" },
      label: { ...this.text, offset: [9, 9], strokeColor: this.INK },
    });
    point.rendNode.setAttribute("role", "application"); // or screen readers keep the arrow keys for themselves
    return point;
  },

  text: { display: "internal", fontSize: 15, cssStyle: "", highlight: false, fixed: true, tabindex: null },

  /** A place that follows from the others, with its name. */
  dot(board, x, y, name, colour, offset = [8, 8]) {
    return board.create("point", [x, y], {
      ...this.still(colour), name, size: 3, fillColor: colour, withLabel: name !== "", showInfobox: false,
      cssClass: "still", // a finger goes through it
      label: { ...this.text, offset, strokeColor: this.INK },
    });
  },

  /** The ellipse z' Σ⁻¹ z = 1 of a covariance that a function returns. */
  ellipse(board, covariance, colour, more = {}) {
    const along = (t, i) => {
      const half = arithmetic.root(covariance());
      return half[i][0] * Math.cos(t) + half[i][1] * Math.sin(t);
    };
    return board.create("curve", [t => along(t, 0), t => along(t, 1), 0, 2 * Math.PI], {
      ...this.still(colour), strokeWidth: 2.5, fillColor: colour, fillOpacity: 0.08, ...more,
    });
  },

  /** A table of names and numbers; returns what writes the numbers anew. */
  numbers(parent, names) {
    const cells = names.map(() => this.element("td"));
    parent.append(
      this.element("table", { class: "numbers" }, ...names.map((name, row) => {
        return this.element("tr", {}, this.element("th", { scope: "row" }, name), cells[row]);
      })),
    );
    return values => values.forEach((value, row) => { cells[row].textContent = value; });
  },

  /** A line that is read out when it changes. */
  spoken(parent) {
    const line = this.element("p", { class: "spoken", role: "status" });
    parent.append(line);
    return words => { if (line.textContent !== words) line.textContent = words; };
  },

  /** A slider of a share between 0 and 1; returns what moves it. */
  slider(parent, name, value, moved) {
    const shown = this.element("output");
    const range = this.element("input", { type: "range", min: 0.01, max: 0.99, step: 0.01, "aria-label": name });
    const show = share => { range.value = share; shown.textContent = this.number(share); };
    range.addEventListener("input", () => { shown.textContent = this.number(+range.value); moved(+range.value); });
    parent.append(this.element("label", {}, this.element("span", {}, name), range, shown));
    show(value);
    return show;
  },

  button(parent, name, pressed) {
    const made = this.element("button", { type: "button" }, name);
    made.addEventListener("click", pressed);
    parent.append(made);
  },

  /** A bar from a bound to what it bounds, on a line from `least` to `most`; returns what moves both. */
  bar(parent, least, most) {
    const gap = this.element("div", { class: "gap" });
    parent.append(this.element("div", { class: "bar", "aria-hidden": "true" }, gap));
    const part = value => 100 * Math.min(Math.max((value - least) / (most - least), 0), 1);
    return (bound, value) => {
      gap.style.left = `${part(bound)}%`;
      gap.style.width = `${Math.max(part(value) - part(bound), 0)}%`;
    };
  },
};
