/* The arithmetic of drawings that one can drag: matrices of two rows and two columns, lists of weights, no page.

A matrix is [[a, b], [c, d]], as in NumPy. tests/house/test_dragged.py holds every function against dualmech. */
"use strict";

const arithmetic = {
  // Matrices.

  determinant: ([[a, b], [c, d]]) => a * d - b * c,

  trace: ([[a, _b], [_c, d]]) => a + d,

  transpose: ([[a, b], [c, d]]) => [[a, c], [b, d]],

  inverse(M) {
    const [[a, b], [c, d]] = M, volume = this.determinant(M);
    return [[d / volume, -b / volume], [-c / volume, a / volume]];
  },

  times: (A, B) => A.map(row => [0, 1].map(j => row[0] * B[0][j] + row[1] * B[1][j])),

  scaled: (s, A) => A.map(row => row.map(entry => s * entry)),

  /** s A + t B. */
  combined: (s, A, t, B) => A.map((row, i) => row.map((entry, j) => s * entry + t * B[i][j])),

  /** v M v'. */
  form: ([x, y], [[a, b], [c, d]]) => a * x * x + (b + c) * x * y + d * y * y,

  /** ‖A‖_*, the sum of the two singular values: its square is ‖A‖_F² + 2 |det A|. */
  traceNorm(A) {
    return Math.sqrt(A.flat().reduce((sum, entry) => sum + entry * entry, 2 * Math.abs(this.determinant(A))));
  },

  /** (A'A)^½ = (A'A + |det A| I) / ‖A‖_*, by Cayley and Hamilton; of a symmetric A its absolute value. */
  modulus(A) {
    const norm = this.traceNorm(A), volume = Math.abs(this.determinant(A));
    const square = this.times(this.transpose(A), A);
    return norm ? this.combined(1 / norm, square, volume / norm, [[1, 0], [0, 1]]) : [[0, 0], [0, 0]];
  },

  /** M^½ of a symmetric M with no negative eigenvalue, by the same theorem. */
  root(M) {
    const volume = Math.sqrt(Math.max(this.determinant(M), 0)), norm = Math.sqrt(this.trace(M) + 2 * volume);
    return norm ? this.combined(1 / norm, M, volume / norm, [[1, 0], [0, 1]]) : [[0, 0], [0, 0]];
  },

  // Noise: a covariance Σ, and the queries W with targets of 1.

  /** Σ = p p' + q q', whose ellipse z' Σ⁻¹ z = 1 passes through p and q. */
  covariance: (p, q) => [0, 1].map(i => [0, 1].map(j => p[i] * p[j] + q[i] * q[j])),

  /** The points p and q of an ellipse, q above the middle: the columns of Cholesky's factor. */
  points([[a, b], [_, c]]) {
    const across = Math.sqrt(a);
    return [[across, b / across], [0, Math.sqrt(Math.max(c - b * b / a, 0))]];
  },

  variances(W, Sigma) {
    return W.map(row => this.form(row, Sigma));
  },

  /** p_i, the diagonal of Σ⁻¹; infinite where the ellipse is a line. */
  costs(Sigma) {
    const volume = this.determinant(Sigma);
    return volume > 1e-9 ? [Sigma[1][1] / volume, Sigma[0][0] / volume] : [Infinity, Infinity];
  },

  /** The squared privacy cost once Σ is scaled until its largest variance is 1. */
  objective(W, Sigma) {
    return Math.max(...this.costs(Sigma)) * Math.max(...this.variances(W, Sigma));
  },

  // The dual: weights of the cells, λ, and of the queries, μ, which sum to 1.

  weighted: (W, cells, queries) => W.map((row, j) => row.map((w, i) => Math.sqrt(queries[j] * cells[i]) * w)),

  /** ‖D_μ^½ W D_λ^½‖_*², below which no noise costs. */
  bound(W, cells, queries) {
    return this.traceNorm(this.weighted(W, cells, queries)) ** 2;
  },

  /** A plain step of the fixed point: each weight becomes its share of the trace norm. */
  step(W, cells, queries) {
    const A = this.weighted(W, cells, queries), norm = this.traceNorm(A);
    const shares = M => [0, 1].map(i => this.modulus(M)[i][i] / norm);
    return { cells: shares(A), queries: shares(this.transpose(A)) };
  },

  /** The noise that weights determine: the geometric mean of P and Q⁻¹, scaled until its largest variance is 1. */
  noise(W, cells, queries) {
    const P = [[cells[0], 0], [0, cells[1]]];
    const Q = this.times(this.transpose(W), [0, 1].map(j => W[j].map(w => queries[j] * w)));
    const small = Math.sqrt(this.determinant(P)), large = Math.sqrt(this.determinant(Q));
    const mean = this.combined(1 / small, P, large, this.inverse(Q));
    return this.scaled(1 / Math.max(...this.variances(W, mean)), mean);
  },

  // Factorisations W = X Y.

  /** For the rows of X: Y, the largest norm r(X) of a row, the largest norm s(Y) of a column, and their product. */
  factorisation(W, X) {
    const Y = this.times(this.inverse(X), W), longest = M => Math.max(...M.map(row => Math.hypot(...row)));
    const r = longest(X), s = longest(this.transpose(Y));
    return { Y, r, s, product: r * s };
  },

  // Two mechanisms, of covariances P and R.

  /** Their common mechanism of least trace, ½ (P + R) + ½ |P - R|. */
  common(P, R) {
    return this.combined(0.5, this.combined(1, P, 1, R), 0.5, this.modulus(this.combined(1, P, -1, R)));
  },

  /** The dual weight of P, a projector: on the directions in which P has the larger variance; the rest is R's. */
  share(P, R) {
    const difference = this.combined(1, P, -1, R);
    if (this.determinant(difference) >= 0) return this.trace(difference) > 0 ? [[1, 0], [0, 1]] : [[0, 0], [0, 0]];
    const positive = this.combined(0.5, difference, 0.5, this.modulus(difference));
    return this.scaled(1 / this.trace(positive), positive);
  },

  /** tr(P Y) + tr(R (I - Y)), below which no common mechanism has its trace. */
  shareBound(P, R, Y) {
    return this.trace(this.times(P, Y)) + this.trace(R) - this.trace(this.times(R, Y));
  },

  /** What is left of a mechanism: the cost matrix P⁻¹ - Σ⁻¹. */
  residual(P, Sigma) {
    return this.combined(1, this.inverse(P), -1, this.inverse(Sigma));
  },

  /** The largest eigenvalue of a symmetric matrix, and its unit vector. */
  largest(M) {
    const [[a, b], [_, d]] = M, half = Math.hypot((a - d) / 2, b), value = (a + d) / 2 + half;
    const vector = a > d ? [value - d, b] : [b, value - a], length = Math.hypot(...vector);
    return { value, vector: length ? vector.map(entry => entry / length) : [1, 0] };
  },
};
