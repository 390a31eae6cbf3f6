"""What a planner asks of an answer: the privacy-accuracy curve in numbers, and prices in sentences."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import crosscheck, fast
from dualmech.publishing.prices import price_sentences

TABLES = dm.workloads.union(
    {"age": 8, "sex": 2}, {"sums": {"age": dm.workloads.prefix(8)}, "both": ["age", "sex"], "sexes": ["sex"]}
)
PRODUCT = dm.workloads.kron(dm.workloads.prefix(4), dm.workloads.identity_total(3))


class TestCurve:
    """Rows of privacy and accuracy."""

    @pytest.mark.parametrize(
        "problem",
        [
            dm.FitnessForUse(TABLES, {"sums": 1.0, "both": 4.0, "sexes": 2.0}),
            dm.FitnessForUse(dm.workloads.prefix(6)),
            dm.PrivacyFirst(dm.workloads.prefix(6), 1.0, 0.4),
            dm.TotalVariance(TABLES),
            dm.FitnessForUse(PRODUCT, geometry="product"),
        ],
    )
    def test_rows_are_the_margins_of_scaled_noise(self, problem: Any) -> None:
        answer = fast.solve(problem)
        rows = crosscheck.curve(answer, rhos=[0.05, 2.0], delta=1e-6, z=2.0)
        assert rows == crosscheck.curve(problem, rhos=[0.05, 2.0], delta=1e-6, z=2.0)
        for row in rows:
            scaled = answer.mechanism.scaled(row["variances"])
            assert scaled.rho == pytest.approx(row["rho"], rel=1e-9)
            assert scaled.epsilon(1e-6) == pytest.approx(row["epsilon"], rel=1e-6)
            cells = dm.Workload(problem.workload.dense())
            largest = 2 * np.sqrt(scaled.dense().variances(cells).max())
            margins = [value for name, value in row.items() if name.startswith("margin of ")]
            assert max(margins) == pytest.approx(largest, rel=1e-9)

    def test_tables_have_columns_of_their_own(self) -> None:
        (row,) = crosscheck.curve(dm.BlockMechanism.of_tables(TABLES), TABLES, epsilons=[1.0])
        names = ["rho", "epsilon", "delta", "variances"]
        assert [*row] == [*names, "margin of sums", "margin of both", "margin of sexes"]
        assert row["epsilon"] == 1.0
        assert dm.accounting.epsilon(np.sqrt(2 * row["rho"]), 1e-9) == pytest.approx(1.0, rel=1e-6)

    def test_many_tables_share_columns_by_their_ways(self) -> None:
        asked = dm.workloads.marginals([3] * 9, ways=(1, 2))
        (row,) = crosscheck.curve(dm.BlockMechanism.of_tables(asked), asked, rhos=[1.0])
        assert [*row][4:] == ["margin of 1-way", "margin of 2-way"]

    def test_bad_input(self) -> None:
        made = dm.LinearGaussianMechanism(np.eye(2), np.eye(2))
        with pytest.raises(dm.errors.InvalidInputError, match="either rhos or epsilons"):
            crosscheck.curve(made, dm.workloads.prefix(2), rhos=[1], epsilons=[1])
        with pytest.raises(dm.errors.InvalidInputError, match="workload must be given"):
            crosscheck.curve(made)
        with pytest.raises(dm.errors.InvalidInputError, match="rhos must be positive"):
            crosscheck.curve(made, dm.workloads.prefix(2), rhos=[0.0])
        with pytest.raises(dm.errors.InputTypeError, match="answer must be a Solution or a mechanism"):
            crosscheck.curve(3, dm.workloads.prefix(2))


class TestPricesInWords:
    """Sentences of prices."""

    def test_tables_by_name_the_dearest_first(self) -> None:
        answer = fast.solve(dm.FitnessForUse(TABLES, {"sums": 1.0, "both": 4.0, "sexes": 2.0}))
        said = dm.prices_in_words(answer)
        order = [TABLES.table_names[number] for number in np.argsort(-answer.prices)]
        assert [re.findall("'(.*)'", each) for each in said] == [[name] for name in order]
        dearest = answer.prices.max()
        assert said[0].startswith(f"Loosening the target of '{order[0]}' by 1 % saves about {dearest:.2g} %")

    def test_a_looser_target_saves_no_more(self) -> None:
        problem = dm.FitnessForUse(TABLES, [1.0, 4.0, 2.0])
        answer = fast.solve(problem, tol=1e-9)
        for table, price in enumerate(answer.prices):
            targets = np.array([1.0, 4.0, 2.0])
            targets[table] *= 1.01
            looser = fast.solve(dm.FitnessForUse(TABLES, targets), tol=1e-9)
            saved = 1 - looser.objective / answer.objective
            assert saved <= 0.01 * price + 1e-8
            assert saved >= 0.01 * price * 0.95 - 1e-8

    def test_queries_groups_and_those_without_a_price(self) -> None:
        queries = dm.prices_in_words(fast.solve(dm.FitnessForUse(dm.workloads.prefix(9))))
        assert len(queries) == 7 and "all 3 others" in queries[-1]
        stacked = dm.workloads.stack(dm.workloads.total(4), dm.workloads.identity(4))
        grouped = dm.prices_in_words(fast.solve(dm.FitnessForUse(stacked)))
        assert any(each.startswith("Loosening the targets of ") for each in grouped)
        dull = dm.FitnessForUse(dm.Workload([[1, 0], [0, 1], [0, 0.1]]), [1.0, 1.0, 4.0])
        dual = ([0.5, 0.5], [0.5, 0.5, 0.0])
        assert dull.certify(np.eye(2), dual).gap < 1e-9
        assert price_sentences(dull, dull.prices(dual))[-1].startswith("At no price: 'q2'")

    def test_other_problems(self) -> None:
        first = dm.prices_in_words(fast.solve(dm.PrivacyFirst(dm.workloads.prefix(3), 1.0, 1.0)))
        assert "lowers the factor on all targets by about" in first[0]
        total = dm.prices_in_words(fast.solve(dm.TotalVariance(dm.workloads.prefix(3))))
        assert total[0].startswith("Raising the weight of 'cells 0..2' by 1 % adds about")
        for answer in (
            fast.solve(dm.FitnessForUse(PRODUCT, geometry="product")),
            fast.solve(dm.QueryWeighting(dm.workloads.prefix(3), np.eye(3))),
        ):
            with pytest.raises(dm.errors.InvalidInputError, match="prices in words"):
                dm.prices_in_words(answer)
