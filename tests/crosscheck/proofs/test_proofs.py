"""Proof files: exact weak duality, optima that are known exactly, and files that were tampered with."""

import json
import math
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run
from hypothesis import assume, given
from hypothesis import strategies as st
from proof_files import changed, places

import dualmech as dm
from dualmech import fast, reference
from dualmech.crosscheck.proofs import noise
from dualmech.crosscheck.proofs.checker import check
from dualmech.crosscheck.proofs.checker.exact import Refused
from dualmech.crosscheck.proofs.prove import provable
from dualmech.crosscheck.proofs.texts import root_below, written
from dualmech.solution import retold

RNG = np.random.default_rng(0)

WORKLOADS = {
    "prefixes": dm.workloads.prefix(8).dense(),
    "rank-deficient": RNG.standard_normal((8, 3)) @ RNG.standard_normal((3, 6)),
    "tall": RNG.standard_normal((20, 3)),
    "wide": RNG.standard_normal((3, 20)),
    "one row": RNG.standard_normal((1, 6)),
    "one column": RNG.standard_normal((5, 1)),
    "rows twice": np.repeat(RNG.standard_normal((3, 4)), 2, axis=0),
    "columns twice": np.repeat(RNG.standard_normal((3, 4)), 2, axis=1),
    "large": 1e6 * RNG.standard_normal((5, 5)),
    "small": 1e-6 * RNG.standard_normal((5, 5)),
    "rows of all sizes": RNG.standard_normal((5, 5)) * np.logspace(-6, 6, 5)[:, None],
    "columns of all sizes": RNG.standard_normal((5, 5)) * np.logspace(-6, 6, 5),
    "nearly dependent": np.array([[1, 1], [1, 1 + 1e-9]]),
    "zeros": np.pad(RNG.standard_normal((3, 3)), ((0, 1), (0, 2))),
}

whole = st.integers(-4, 4)


def matrices(rows: int, columns: int) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(whole, min_size=columns, max_size=columns), min_size=rows, max_size=rows)


def document(kind: str, workload: Any, numbers: Any, upper: Any, lower: Any, neighbours: Any = None) -> dict[str, Any]:
    stated = {"kind": kind, "workload": workload, "neighbours": neighbours, "numbers": numbers, "allowed": 1}
    shown = {
        "upper": dict(zip(("strategy", "inverse"), upper, strict=True)),
        "lower": dict(zip(("query_roots", "neighbour_roots", "isometry"), lower, strict=True)),
    }
    return {"schema": check.SCHEMA, **written({"problem": stated, **shown})}


class TestWeakDuality:
    @given(st.data(), st.sampled_from(["targets", "weights"]), st.booleans())
    def test_whatever_a_file_holds_its_lower_bound_is_below_its_upper(self, data: Any, kind: str, moved: bool) -> None:
        """A strategy is a product of elementary matrices, so that its inverse is whole; all else is arbitrary."""
        queries, cells, pairs = (data.draw(st.integers(1, 3)) for _ in range(3))
        pairs = pairs if moved else cells
        strategy, inverse = np.eye(cells), np.eye(cells)
        for _ in range(data.draw(st.integers(0, 4))):
            i, j, factor = (
                data.draw(st.integers(0, cells - 1)),
                data.draw(st.integers(0, cells - 1)),
                data.draw(whole),
            )
            if i != j:
                step = np.eye(cells)
                step[i, j] = factor
                strategy, inverse = step @ strategy, inverse @ (2 * np.eye(cells) - step)
        workload = data.draw(matrices(queries, cells))
        neighbours = data.draw(matrices(cells, pairs)) if moved else None
        p = data.draw(st.lists(whole, min_size=queries, max_size=queries))
        numbers = [each * each for each in p] if kind == "weights" else [1 + abs(each) for each in p]
        q = data.draw(st.lists(whole, min_size=pairs, max_size=pairs))
        isometry = data.draw(matrices(queries, pairs))
        asked = any(p) or kind == "weights"
        assume(asked and any(q) and any(map(any, isometry)))
        lower, upper = check.proven_bounds(
            document(kind, workload, numbers, (strategy, inverse), (p, q, isometry), neighbours)
        )
        assert 0 <= lower <= upper

    def test_inverses_that_are_off_and_roots_above_the_weights(self) -> None:
        bad = document("targets", [[1]], [1], ([[1]], [[2]]), ([1], [1], [[1]]))
        with pytest.raises(Refused, match=r"\|A Z - I\| must be below 1"):
            check.proven_bounds(bad)
        off = document("targets", [[1]], [1], ([[1]], [[0.75]]), ([1], [1], [[1]]))
        lower, upper = check.proven_bounds(off)
        assert lower == 1 <= upper and float(upper) == pytest.approx(1, rel=1e-15)
        bad = document("weights", [[1]], [1], ([[1]], [[1]]), ([2], [1], [[1]]))
        with pytest.raises(Refused, match="at most its weight"):
            check.proven_bounds(bad)


class TestProofs:
    @pytest.mark.parametrize(
        ("name", "family"), [*zip(WORKLOADS, [dm.FitnessForUse, dm.TotalVariance, dm.PrivacyFirst] * 5, strict=False)]
    )
    @pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")
    def test_the_interval_meets_the_judges_and_is_hardly_wider(self, name: str, family: Any) -> None:
        workload = dm.Workload(WORKLOADS[name])
        options: dict[str, Any] = {"cost": 0.3} if family is dm.PrivacyFirst else {}
        if family is not dm.TotalVariance:
            options["targets"] = np.linspace(1, 10, len(workload))
        answer = fast.solve(family(workload, **options), tol=1e-9)
        proof = dm.prove(answer)
        low, high = answer.certificate.interval
        assert proof.lower <= high * (1 + 1e-12) and low * (1 - 1e-12) <= proof.upper
        # Beyond double precision an answer is one at a looser tolerance.
        assert proof.width <= (2e-9 if answer.status is dm.Status.CERTIFIED else 2e-8)
        assert proof.is_of(answer.problem)

    @pytest.mark.parametrize("neighbours", ["replace", "add-remove:3", [[1, 0], [-1, 1], [0, 1e-6], [0, 0]]])
    def test_other_neighbours(self, neighbours: Any) -> None:
        problem = dm.FitnessForUse(dm.workloads.prefix(4), targets=1.0, neighbours=neighbours)
        answer = fast.solve(problem, tol=1e-8)
        proof = dm.prove(answer)
        assert proof.width <= answer.gap + 1e-9
        low, high = answer.certificate.interval
        assert proof.lower <= high and low <= proof.upper

    @pytest.mark.parametrize("family", [dm.FitnessForUse, dm.TotalVariance])
    def test_what_is_released_exactly(self, family: Any) -> None:
        """Replaced records leave the total of a marginal alone: its noise is 0, and so are numbers of the proof."""
        tables = dm.workloads.marginals([3, 2], ways=(1,))
        answer = fast.solve(family(tables, neighbours="replace", geometry="dense"), tol=1e-8)
        assert dm.prove(answer).width <= answer.gap + 1e-9

    def test_optima_that_are_known_exactly(self) -> None:
        known: dict[Fraction, Any] = {
            Fraction(4, 3): dm.FitnessForUse(dm.workloads.prefix(2)),
            Fraction(1): dm.FitnessForUse(dm.Workload([[1, 1, 1]])),
            Fraction(16): dm.FitnessForUse(dm.Workload([[4, 1], [0, 0.5]]), targets=[1.0, 1.0]),
            Fraction(3): dm.TotalVariance(dm.workloads.identity(3)),
        }
        for optimum, problem in known.items():
            proof = dm.prove(fast.solve(problem, tol=1e-9))
            assert proof.lower <= optimum <= proof.upper, problem

    def test_any_answer_can_be_proven_a_worse_one_less_narrowly(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.prefix(6))
        proofs = [dm.prove(reference.solve(problem)), dm.prove(fast.solve(problem, tol=1e-9))]
        assert proofs[0].lower <= proofs[1].upper and proofs[1].lower <= proofs[0].upper
        problem = dm.FitnessForUse(dm.workloads.prefix(16))
        coarse, fine = (dm.prove(fast.solve(problem, tol=tol)) for tol in (1e-1, 1e-9))
        assert coarse.lower <= fine.lower <= fine.upper <= coarse.upper
        assert coarse.width > 1e-4 > fine.width

    def test_what_has_no_such_proof_is_refused_by_name(self) -> None:
        one, other = (dm.LinearGaussianMechanism([row], [[1]]) for row in ([1, 0], [0, 1]))
        with pytest.raises(dm.errors.InvalidInputError, match="needs a common query"):
            dm.prove(fast.solve(dm.CommonMechanism([one, other])))
        with pytest.raises(dm.errors.InvalidInputError, match="at most 20 user types, got 21"):
            dm.prove(fast.solve(dm.LocalStrategy(dm.workloads.identity(21), 1.0), tol=0.5))
        with pytest.raises(dm.errors.InputTypeError, match=r"answer must be a Solution of dualmech or a Judgement"):
            dm.prove(3)
        answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(3)))
        for wrong in (np.zeros((3, 3)), np.full((3, 3), np.nan), -np.eye(3)):
            with pytest.raises(dm.errors.CertificateError, match="proves no bound"):
                dm.prove(retold(answer, primal=wrong))

    def test_what_is_too_large_is_refused_before_any_work(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(noise, "MAX_MULTIPLICATIONS", 1000)
        with pytest.raises(dm.errors.InvalidInputError, match="8 queries on 8 cells takes 1.5e[+]03 multiplications"):
            provable(dm.FitnessForUse(dm.workloads.prefix(8)))


@pytest.fixture(scope="module")
def proof() -> dm.Proof:
    return dm.prove(fast.solve(dm.FitnessForUse(dm.workloads.prefix(4)), tol=1e-9))


class TestFiles:
    def test_a_file_says_what_it_was_made_of(self, proof: dm.Proof, tmp_path: Path) -> None:
        path = tmp_path / "proof.json"
        proof.save(path)
        again = dm.verify(path)
        assert (again.lower, again.upper, again.document) == (proof.lower, proof.upper, proof.document)
        assert "Proof(1.75" in repr(again) and "width" in again._repr_html_()
        assert not again.is_of(dm.FitnessForUse(dm.workloads.prefix(4), targets=2.0))
        assert not again.is_of(dm.FitnessForUse(dm.workloads.prefix(5)))
        assert not again.is_of(dm.TotalVariance(dm.workloads.prefix(4)))

    def test_the_checker_needs_no_library(self, proof: dm.Proof, tmp_path: Path) -> None:
        path, checker, W = tmp_path / "proof.json", tmp_path / "checker", dm.workloads
        shutil.copytree(Path(check.__file__).parent, checker, ignore=shutil.ignore_patterns("__pycache__"))
        command = [sys.executable, "-I", "-S", str(checker), str(path)]
        tables = W.query_tables({"a": 4, "b": 3}, {"a": W.prefix(4)}, ways=(1, 2))
        problems: tuple[Any, ...] = (
            dm.FitnessForUse(tables, geometry="blocks"),
            dm.TotalVariance(tables, geometry="split"),
            dm.FitnessForUse(W.kron(W.prefix(2), W.prefix(3))),
        )
        for each in (*(dm.prove(fast.solve(problem, tol=0.5)) for problem in problems), proof):
            each.save(path)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0 and done.stdout.startswith("proven: "), done.stderr
        assert done.stdout.startswith("proven: 1.75")
        path.write_text(path.read_text().replace('"upper":"0x', '"upper":"-0x'))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 3 and "the claimed upper bound" in done.stdout

    def test_no_change_of_a_number_makes_a_wrong_claim_pass(self, proof: dm.Proof) -> None:
        """Whatever passes is true still: its lower claim is below the upper claim of the file as it was."""
        refused = 0
        for place in places(proof.document):
            for value in ("0x1p0", "-0x3p-1", "0x0p0", "0x1p40"):
                other = changed(proof.document, place, value)
                try:
                    lower, upper = check.check(other)
                except Refused:
                    refused += 1
                    continue
                assert lower <= upper
                if place[0] != "problem":
                    assert lower <= proof.upper and proof.lower <= upper
        assert refused > 100

    def test_a_proof_of_the_schema_before_is_read(self, proof: dm.Proof) -> None:
        """It wrote tables in another way, and everything else as now."""
        older = changed(proof.document, ("schema",), "dualmech.proof/2")
        assert check.check(older) == check.check(proof.document)

    def test_what_is_no_proof_is_refused_with_the_reason(self, proof: dm.Proof, tmp_path: Path) -> None:
        for place, value, words in (
            (("schema",), "dualmech.proof/4", "it is not a 'dualmech.proof/3' file, its schema is 'dualmech.proof/4'$"),
            (("problem", "kind"), [], "kind must be"),
            (("problem", "kind"), "weighting", "privacy must be"),
            (("problem", "kind"), "table targets", "sizes must be a list"),
            (("problem",), None, "it has no 'problem'"),
            (("claim",), [], "it has no 'claim'"),
            (("problem", "kind"), "costs", "kind must be"),
            (("problem", "workload"), [], "workload must be a list of rows"),
            (("problem", "workload"), [["0x1p0"]], "numbers must be 1 numbers, got 4"),
            (("problem", "numbers"), ["0x1p0", "0x0p0", "0x1p0", "0x1p0"], "must be positive"),
            (("problem", "allowed"), "-0x1p0", "must be positive"),
            (("problem", "neighbours"), [["0x1p0"]], "neighbours must have 4 rows, got 1"),
            (("upper", "strategy"), [["0x1p0"]], "strategy must have 4 rows"),
            (("lower", "isometry"), [["0x1p0"]], "isometry must have 4 rows"),
            (("lower", "query_roots"), ["0x1p0"], "query_roots must be 4 numbers, got 1"),
            (("lower", "neighbour_roots"), ["0x0p0"] * 4, "must not all be 0"),
            (("claim", "lower"), 1.75, "is not a number"),
            (("claim", "lower"), "1.75", "is not a number"),
            (("claim", "lower"), "0x1p99999", "is not a number"),
            (("claim", "lower"), "0x" + "1" * 1001 + "p0", "is not a number"),
            (("claim", "lower"), "nan", "is not a number"),
            (("claim", "lower"), "0x1p1", "the claimed lower bound, 2, is above the proven bound, 1.7"),
            (("claim", "upper"), "0x1p0", "the claimed upper bound, 1, is below the proven bound, 1.7"),
        ):
            path = tmp_path / "proof.json"
            path.write_text(json.dumps(changed(proof.document, place, value)))
            with pytest.raises(dm.errors.CertificateError, match=words):
                dm.verify(path)

    @pytest.mark.parametrize("text", ["", "[", "3", "null", "[" * 100_000, '{"schema": NaN}', "\x00"])
    def test_what_is_no_json_is_refused(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "proof.json"
        path.write_text(text)
        with pytest.raises(dm.errors.CertificateError):
            dm.verify(path)

    def test_files_that_cannot_be_read_or_written(self, proof: dm.Proof, tmp_path: Path) -> None:
        with pytest.raises(dm.errors.FileFormatError):
            dm.verify(tmp_path / "none.json")
        with pytest.raises(dm.errors.FileFormatError):
            proof.save(tmp_path / "nowhere" / "proof.json")
        (tmp_path / "latin.json").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(dm.errors.CertificateError):
            dm.verify(tmp_path / "latin.json")


class TestCommand:
    def test_solve_writes_a_proof_that_verify_checks(self, tmp_path: Path) -> None:
        path = str(tmp_path / "proof.json")
        solved = run("solve", "prefix:6", "--prove", path)
        assert solved.exit_code == 0 and "Proven in exact arithmetic: " in solved.output
        for words in ([], ["prefix:6"], ["prefix:6", "--targets", "1"]):
            verified = run("verify", path, *words)
            assert verified.exit_code == 0 and "with less than" in verified.output
        other = run("verify", path, "prefix:6", "--targets", "2")
        assert other.exit_code == 3 and "of another problem" in other.output

    def test_tampering_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "proof.json"
        assert run("solve", "prefix:4", "--rho", "0.5", "--prove", str(path)).exit_code == 0
        written = json.loads(path.read_text())
        path.write_text(json.dumps(changed(written, ("claim", "lower"), written["claim"]["upper"])))
        refused = run("verify", str(path))
        assert refused.exit_code == 3 and "the claimed lower bound" in refused.output

    @pytest.mark.parametrize("geometry", ["auto", "dense"])
    def test_tables_are_proven_on_any_geometry(self, geometry: str, tmp_path: Path) -> None:
        path, asked = str(tmp_path / "proof.json"), ("marginals:2x3:1,2", "--problem", "variance")
        assert run("solve", *asked, "--geometry", geometry, "--prove", path).exit_code == 0
        kind = {"auto": "table weights", "dense": "weights"}[geometry]
        assert dm.verify(path).document["problem"]["kind"] == kind
        assert run("verify", path, *asked).exit_code == 0
        assert run("verify", path, "marginals:2x3:1", "--problem", "variance").exit_code == 3
        assert run("verify", path, "prefix:6", "--problem", "variance").exit_code == 3

    def test_verify_takes_what_solve_takes(self, tmp_path: Path) -> None:
        for asked, other in (
            ("marginals:2x3:1,2 --neighbours replace", "--neighbours add-remove"),
            ("prefix:4 --problem weighting --design haar", "--design tree"),
            ("prefix:4 --problem weighting --privacy pure", "--privacy approximate"),
            ("prefix:4 --problem variance --weights 2", "--weights 3"),
            ("marginals:2x3:0,1 --rho 1/2 --cap 0=3", "--cap 0=2"),
        ):
            path = str(tmp_path / "proof.json")
            assert run("solve", *asked.split(), "--prove", path).exit_code == 0
            assert run("verify", path, *asked.split()).exit_code == 0
            assert run("verify", path, *asked.split()[:-2], *other.split()).exit_code == 3

    def test_what_cannot_be_proven_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = "marginals:2x3:1,2 --neighbours replace --geometry blocks"
        refused = run("solve", *asked.split(), "--prove", "p.json")
        assert "not of replaced ones" in str(refused.exception)
        monkeypatch.setattr(noise, "MAX_MULTIPLICATIONS", 1000)
        path = tmp_path / "proof.json"
        refused = run("solve", "prefix:8", "--prove", str(path))
        assert "8 queries on 8 cells" in str(refused.exception) and not path.exists()
        wrong = run("solve", "prefix:4", "--prove", str(tmp_path / "proof.npz"))
        assert ".json" in str(wrong.exception)
        alone = run("verify", str(path), "--targets", "2")
        assert "needs the WORKLOAD" in str(alone.exception)


@pytest.mark.parametrize("weight", [Fraction(1, 10**400), Fraction(3, 10**323), Fraction(2), 2.0, 5e-324, 0.0])
def test_roots_are_below_and_near(weight: Fraction | float) -> None:
    """Of fractions below the smallest doubles too, whose nearest double is far above; there any bound will do."""
    root = root_below(weight)
    assert Fraction(root) ** 2 <= weight
    assert weight < 1e-300 or weight < Fraction(math.nextafter(root, math.inf)) ** 2 * (1 + Fraction(1, 10**9))


def test_a_file_that_is_no_text_is_called_so(tmp_path: Path) -> None:
    dm.save(fast.solve(dm.FitnessForUse(dm.workloads.prefix(3), 1.0)), tmp_path / "answer.npz")
    with pytest.raises(Refused, match="it is not text: a proof is a JSON file"):
        check.read(str(tmp_path / "answer.npz"))
