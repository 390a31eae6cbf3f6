/* Lesson 5: two mechanisms as ellipses that are dragged, what they share, and what is left of each. */
"use strict";

const commonPart = {
  START: [[[2, 0.6], [0, 0.8]], [[1, -0.6], [0, Math.sqrt(1.64)]]], // the covariances of the page

  SAID:
    "Drag p and q, through which each ellipse passes, or reach them with the Tab key and move them with the arrow " +
    "keys. The outer ellipse is the noise of what the two mechanisms share: it surrounds both, and touches each.",

  begin(place) {
    const { planes, beside } = drawing.parts(place, this.SAID);
    const label = "Noise on the first cell (across) and on the second (upwards): two mechanisms and their common one.";
    this.board = drawing.plane(planes, `${place.id}-plane`, label, [-2.6, 2.6, 2.6, -2.6]);
    this.handles = ["₁", "₂"].map((index, which) => ["p", "q"].map((letter, row) => {
      const name = `${letter}${index}`, colour = drawing.COLOURS[which];
      return drawing.handle(this.board, this.START[which][row], name, `point ${name} of an ellipse`, colour);
    }));
    this.draw();
    this.lists(beside);
    this.again();
    this.board.on("update", () => this.say());
  },

  /** The covariance of a mechanism. */
  noise(which) {
    return arithmetic.covariance(...this.handles[which].map(point => [point.X(), point.Y()]));
  },

  common() {
    return arithmetic.common(this.noise(0), this.noise(1));
  },

  draw() {
    const { board } = this;
    [0, 1].forEach(which => {
      drawing.ellipse(board, () => this.noise(which), drawing.COLOURS[which], { dash: 2 * which });
    });
    drawing.ellipse(board, () => this.common(), drawing.COLOURS[2], { strokeWidth: 4, fillOpacity: 0 });
    for (const which of [0, 1]) {
      for (const side of [-1, 1]) {
        const at = i => side * this.touching(which)[i];
        drawing.dot(board, () => at(0), () => at(1), "", drawing.INK);
      }
    }
  },

  /** Where the outer ellipse touches one of the two: P k / √(k' P k), k in the kernel of Σ - P; nowhere if Σ = P. */
  touching(which) {
    const P = this.noise(which), excess = arithmetic.combined(1, this.common(), -1, P);
    if (arithmetic.largest(excess).value < 1e-9) return [NaN, NaN];
    const [x, y] = arithmetic.largest(excess).vector, k = [-y, x], length = Math.sqrt(arithmetic.form(k, P));
    return P.map(row => (row[0] * k[0] + row[1] * k[1]) / length);
  },

  lists(beside) {
    const names = ["trace of the first", "trace of the second", "trace of the common", "proven bound"];
    this.write = drawing.numbers(beside, [...names, "left of the first", "left of the second"]);
    this.speak = drawing.spoken(beside);
    drawing.button(beside, "Begin again", () => this.again());
  },

  again() {
    this.handles.forEach((points, which) => points.forEach((point, row) => {
      point.setPositionDirectly(JXG.COORDS_BY_USER, this.START[which][row]);
    }));
    this.board.update();
    this.say();
  },

  /** What is left of a mechanism: the answer to one query, with its variance, where its cost has rank one. */
  left(P, Sigma) {
    const cost = arithmetic.residual(P, Sigma), { value, vector } = arithmetic.largest(cost);
    if (!Number.isFinite(value)) return "—";
    if (value < 1e-9) return "nothing";
    if (arithmetic.trace(cost) - value > 1e-9 * value) return "two answers";
    const [x, y] = vector[0] < 0 ? vector.map(entry => -entry) : vector;
    const sign = y < 0 ? "−" : "+";
    return `${x.toFixed(2)} x₁ ${sign} ${Math.abs(y).toFixed(2)} x₂, variance ${drawing.number(1 / value)}`;
  },

  say() {
    const P = this.noise(0), R = this.noise(1), Sigma = this.common(), trace = M => arithmetic.trace(M);
    const bound = arithmetic.shareBound(P, R, arithmetic.share(P, R));
    const shown = [P, R, Sigma].map(M => drawing.number(trace(M)));
    this.write([...shown, drawing.number(bound), this.left(P, Sigma), this.left(R, Sigma)]);
    const difference = arithmetic.combined(1, P, -1, R), ordered = arithmetic.determinant(difference) >= 0;
    const words = trace(difference) > 0 ? ["first", "second"] : ["second", "first"];
    this.speak(ordered ? `The ${words[0]} can be answered from the ${words[1]}: it is what they share.`
      : `Neither can be answered from the other; the common one has the trace ${drawing.number(trace(Sigma))}.`);
  },
};

commonPart.begin(document.getElementById("common"));
