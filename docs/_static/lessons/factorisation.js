/* Lesson 2: the two sides of γ₂, a factorisation W = X Y that is dragged and weights that bound it from below. */
"use strict";

const factorisation = {
  W: [[1, 0], [1, 1]], // the first cell, and both cells together, with targets of 1

  START: [[Math.SQRT1_2, 0], [Math.SQRT1_2, Math.SQRT1_2]], // that of independent noise

  SAID:
    "Drag x₁ and x₂, the rows of X, or reach them with the Tab key and move them with the arrow keys; the columns y₁ " +
    "and y₂ of Y follow, since W = XY. Then move the weights. The two sides meet at γ₂.",

  begin(place) {
    const { planes, beside } = drawing.parts(place, this.SAID);
    this.cells = [0.5, 0.5];
    this.queries = [0.5, 0.5];
    const rows = "Rows of X and columns of Y, and circles of the radii r(X) and s(Y).";
    this.board = drawing.plane(planes, `${place.id}-plane`, rows, [-1.9, 1.9, 1.9, -1.9]);
    this.x = ["x₁", "x₂"].map((name, row) => {
      return drawing.handle(this.board, this.START[row], name, `row ${name} of X`, drawing.COLOURS[0]);
    });
    this.draw();
    const curve = "What the weights prove for each λ₁ (across), below r(X) s(Y).";
    this.chart = drawing.plane(beside, `${place.id}-chart`, curve, [-0.08, 1.75, 1.08, -0.12], false);
    this.drawChart();
    this.lists(beside);
    this.again();
    this.board.on("update", () => this.say());
  },

  X() {
    return this.x.map(point => [point.X(), point.Y()]);
  },

  sides() {
    return arithmetic.factorisation(this.W, this.X());
  },

  draw() {
    const { board, x } = this;
    const arrow = (end, colour, more = {}) => board.create("segment", [[0, 0], end], {
      ...drawing.still(colour), strokeWidth: 2, ...more,
    });
    const circle = (radius, colour, more = {}) => board.create("curve", [
      t => radius() * Math.cos(t), t => radius() * Math.sin(t), 0, 2 * Math.PI,
    ], { ...drawing.still(colour), ...more });
    circle(() => this.sides().r, drawing.COLOURS[0]);
    circle(() => this.sides().s, drawing.COLOURS[1], { dash: 2 });
    x.forEach(point => arrow(point, drawing.COLOURS[0]));
    ["y₁", "y₂"].forEach((name, column) => {
      const at = row => () => this.sides().Y[row][column];
      arrow(drawing.dot(board, at(0), at(1), name, drawing.COLOURS[1]), drawing.COLOURS[1], { dash: 2 });
    });
  },

  drawChart() {
    const { chart } = this, norm = share => Math.sqrt(arithmetic.bound(this.W, [share, 1 - share], this.queries));
    chart.create("curve", [t => t, norm, 0, 1], { ...drawing.still(drawing.COLOURS[2]), strokeWidth: 2.5 });
    chart.create("curve", [t => t, () => this.sides().product, 0, 1], {
      ...drawing.still(drawing.COLOURS[0]), strokeWidth: 2, dash: 2,
    });
    const named = (height, words) => chart.create("text", [0.04, () => height() + 0.09, words], {
      ...drawing.text, strokeColor: drawing.INK,
    });
    named(() => this.sides().product, "r(X) s(Y)");
    named(() => norm(0.04) - 0.35, "proven by λ₁");
    drawing.dot(chart, () => this.cells[0], () => norm(this.cells[0]), "", drawing.INK);
  },

  lists(beside) {
    this.write = drawing.numbers(beside, ["r(X)", "s(Y)", "r(X) s(Y), at least γ₂", "proven, at most γ₂"]);
    this.showCells = drawing.slider(beside, "λ₁ of cell 1", 0.5, share => {
      this.cells = [share, 1 - share];
      this.board.update();
    });
    this.showQueries = drawing.slider(beside, "μ₁ of query 1", 0.5, share => {
      this.queries = [share, 1 - share];
      this.board.update();
    });
    this.moveBar = drawing.bar(beside, 1, 1.6);
    this.speak = drawing.spoken(beside);
    drawing.button(beside, "Begin again", () => this.again());
  },

  again() {
    this.cells = [0.5, 0.5];
    this.queries = [0.5, 0.5];
    this.showCells(0.5);
    this.showQueries(0.5);
    this.x.forEach((point, row) => point.setPositionDirectly(JXG.COORDS_BY_USER, this.START[row]));
    this.board.update();
    this.say();
  },

  say() {
    this.chart.update();
    const { r, s, product } = this.sides(), proven = Math.sqrt(arithmetic.bound(this.W, this.cells, this.queries));
    this.write([r, s, product, proven].map(drawing.number));
    this.moveBar(proven, product);
    this.speak(`The bar: γ₂ is between ${drawing.number(proven)} and ${drawing.number(product)}.`);
  },
};

factorisation.begin(document.getElementById("factorisation"));
