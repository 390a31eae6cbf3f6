/* Lesson 1: noise for two cells and two queries as an ellipse that is dragged, and weights that bound its cost. */
"use strict";

const twoCells = {
  W: [[1, 0], [1, 1]], // the first cell, and both cells together, with targets of 1

  START: [[Math.SQRT1_2, 0], [0, Math.SQRT1_2]], // independent noise, the best of its kind

  SAID:
    "Drag p and q, through which the ellipse passes, or reach them with the Tab key and move them with the arrow " +
    "keys. The sliders are weights of a lower bound, which lesson 2 proves. A step of the fixed point, lesson 3's, " +
    "improves the weights and draws the noise that they determine.",

  begin(place) {
    const { planes, beside } = drawing.parts(place, this.SAID);
    const label = "Noise on the first cell (across) and on the second (upwards), and the slabs of the two targets.";
    this.board = drawing.plane(planes, `${place.id}-plane`, label, [-1.8, 1.8, 1.8, -1.8]);
    this.p = drawing.handle(this.board, this.START[0], "p", "point p of the ellipse", drawing.COLOURS[0]);
    this.q = drawing.handle(this.board, this.START[1], "q", "point q of the ellipse", drawing.COLOURS[0]);
    this.draw();
    this.lists(beside);
    this.again();
    this.board.on("update", () => this.say());
  },

  Sigma() {
    return arithmetic.covariance([this.p.X(), this.p.Y()], [this.q.X(), this.q.Y()]);
  },

  draw() {
    const { board } = this, missed = j => arithmetic.variances(this.W, this.Sigma())[j] > 1 + 1e-9;
    board.create("curve", [[1, 1, -1, -1, 1], [0, -2, 0, 2, 0]], {
      ...drawing.still("none"), fillColor: drawing.PALE, fillOpacity: 0.15, // where both slabs are
    });
    const across = [[[0, -9], [0, 9]], [[-9, 9], [9, -9]]]; // where each query is 0
    across.forEach(([from, to], j) => {
      for (const side of [-1, 1]) {
        board.create("line", [[from[0] + side, from[1]], [to[0] + side, to[1]]], {
          ...drawing.still(drawing.INK), dash: 1, strokeWidth: () => (missed(j) ? 3.5 : 1.5),
        });
      }
    });
    drawing.ellipse(board, () => this.Sigma(), drawing.COLOURS[0]);
    const near = () => 1 / Math.sqrt(Math.max(...arithmetic.costs(this.Sigma())));
    drawing.dot(board, near, 0, "b₁/√α", drawing.INK, [6, -12]);
    drawing.dot(board, 0, near, "b₂/√α", drawing.INK, [-52, -4]);
  },

  lists(beside) {
    const names = ["variance of x₁", "variance of x₁ + x₂", "cost of cell 1", "cost of cell 2"];
    this.write = drawing.numbers(beside, [...names, "α, scaled to the targets", "proven bound"]);
    const moved = () => { this.steps = 0; this.say(); };
    this.showCells = drawing.slider(beside, "λ₁ of cell 1", 0.5, share => {
      this.cells = [share, 1 - share];
      moved();
    });
    this.showQueries = drawing.slider(beside, "μ₁ of query 1", 0.5, share => {
      this.queries = [share, 1 - share];
      moved();
    });
    this.moveBar = drawing.bar(beside, 1, 2.5);
    this.speak = drawing.spoken(beside);
    drawing.button(beside, "A step of the fixed point", () => this.step());
    drawing.button(beside, "Begin again", () => this.again());
  },

  again() {
    this.steps = 0;
    this.put([0.5, 0.5], [0.5, 0.5], this.START);
  },

  step() {
    this.steps += 1;
    const { cells, queries } = arithmetic.step(this.W, this.cells, this.queries);
    this.put(cells, queries, arithmetic.points(arithmetic.noise(this.W, cells, queries)));
  },

  put(cells, queries, [p, q]) {
    Object.assign(this, { cells, queries });
    this.showCells(cells[0]);
    this.showQueries(queries[0]);
    this.p.setPositionDirectly(JXG.COORDS_BY_USER, p);
    this.q.setPositionDirectly(JXG.COORDS_BY_USER, q);
    this.board.update();
    this.say();
  },

  /** The numbers next to the plane. */
  say() {
    const { W } = this, Sigma = this.Sigma(), met = v => `${drawing.number(v)}, ${v > 1 + 1e-9 ? "above 1" : "met"}`;
    const cost = arithmetic.objective(W, Sigma), bound = arithmetic.bound(W, this.cells, this.queries);
    const shown = [...arithmetic.variances(W, Sigma).map(met), ...arithmetic.costs(Sigma).map(drawing.number)];
    this.write([...shown, drawing.number(cost), drawing.number(bound)]);
    this.moveBar(bound, cost);
    const after = this.steps ? ` after ${this.steps} ${this.steps === 1 ? "step" : "steps"}` : "";
    this.speak(`The bar: from ${drawing.number(bound)} to ${drawing.number(cost)}, a gap of ` +
      `${drawing.percent(cost / bound - 1)}${after}.`);
  },
};

twoCells.begin(document.getElementById("two-cells"));
