"""Draw how both sides of the proof close in: `python examples/closing_gap.py docs/closing_gap.svg`."""

import sys

import matplotlib.pyplot as plt

import dualmech as dm

problem = dm.FitnessForUse(dm.workloads.prefix(64), targets=1.0)
answer, best = dm.fast.solve(problem, tol=1e-6), dm.fast.solve(problem, tol=1e-9)
steps, optimum = answer.history.iteration, best.objective
figure, axes = plt.subplots(figsize=(6.4, 2.6), layout="constrained")
upper, lower = answer.history.objective / optimum - 1, 1 - answer.history.lower_bound / optimum
axes.semilogy(steps, upper, "o-", label="noise found: above the optimum by")
axes.semilogy(steps, lower, "s-", label="bound proven: below it by")
axes.set(xlabel="eigendecompositions", title="64 running sums, each with variance 1: both sides of the proof")
axes.legend()
plt.rcParams["svg.hashsalt"] = "dualmech"
figure.savefig(sys.argv[1], metadata={"Date": None} if sys.argv[1].endswith(".svg") else None)
