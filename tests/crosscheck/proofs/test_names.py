"""Names in proof files: each is known and used, or the file is refused; what is said rests on checked parts alone."""

import copy
import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commanded import run

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck import library
from dualmech.crosscheck.proofs.checker import check
from dualmech.crosscheck.proofs.checker.exact import Refused
from dualmech.crosscheck.proofs.prove import arguments_part, provable

W = dm.workloads
Document = dict[str, Any]

TABLES = W.union({"hour": 4, "a": 3}, {"1": {"hour": W.prefix(4), "a": None}, "2": ["hour"]})
QUERY_TABLES = W.query_tables({"a": 4, "b": 3}, {"a": W.prefix(4)}, ways=(1, 2))
PRODUCT = W.kron(W.prefix(2), W.prefix(3))

OF_LIBRARY = [
    "softmax-prefix-8-10-replaced",
    "weighting-prefix-8-eigen-queries-replaced",
    "weighting-prefix-8-wavelet-pure",
    "common-example-38",
    "common-whole-3-seed-10-volume",
    "reuse-prefix-8-after-halves",
    "local-prefix-4-1-average",
    "local-prefix-8-1-prior",
    "local-prefix-4-1-worst",
    "projection-6x4-0.5",
    "projection-6x4-0.5-floors",
    "estimate-histogram-16",
    "estimate-histogram-16-total",
]

PROBLEMS: dict[str, Callable[[], Any]] = {
    "fitness": lambda: dm.FitnessForUse(W.prefix(3), 2.0),
    "fitness, neighbours": lambda: dm.FitnessForUse(W.prefix(3), 2.0, neighbours="replace"),
    "privacy first": lambda: dm.PrivacyFirst(W.prefix(3), 2.0, 10.0),
    "variance": lambda: dm.TotalVariance(W.prefix(3)),
    "fitness, epochs": lambda: dm.FitnessForUse(W.prefix(4), 2.0, neighbours="participation:2:2"),
    "variance, at least so far apart": lambda: dm.TotalVariance(
        W.prefix(5), neighbours="participation:2:2:signs:at-least"
    ),
    "variance, signs of epochs": lambda: dm.TotalVariance(
        W.prefix(4), neighbours="participation:2:2:signs", geometry="epochs"
    ),
    "fitness on tables": lambda: dm.FitnessForUse(TABLES, 2.0),
    "privacy first on tables": lambda: dm.PrivacyFirst(TABLES, 2.0, 10.0),
    "variance on tables": lambda: dm.TotalVariance(TABLES),
    "fitness, split": lambda: dm.FitnessForUse(QUERY_TABLES, 2.0, geometry="split"),
    "variance, split": lambda: dm.TotalVariance(QUERY_TABLES, geometry="split"),
    "fitness, product": lambda: dm.FitnessForUse(PRODUCT, 2.0),
    "variance, product": lambda: dm.TotalVariance(W.kron(W.prefix(2), W.marginals([3, 2], ways=1))),
    **{name: library.problems()[name] for name in OF_LIBRARY},
}

KNOWN: dict[str, Document] = {}


def document_of(name: str) -> Document:
    if name not in KNOWN:
        made = dm.prove(fast.solve(PROBLEMS[name](), tol=0.1)).document
        KNOWN[name] = json.loads(json.dumps(made))
    return copy.deepcopy(KNOWN[name])


def parts_of(given: Any) -> Iterator[Document]:
    if isinstance(given, dict):
        yield given
    if isinstance(given, dict | list):
        for each in given.values() if isinstance(given, dict) else given:
            yield from parts_of(each)


def spoken(document: Document, tmp_path: Path) -> tuple[int, str]:
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(document))
    result = run("verify", path)
    return result.exit_code, result.stdout


def test_all_kinds_of_proof_are_here() -> None:
    assert {document_of(name)["problem"]["kind"] for name in PROBLEMS} == set(check.KINDS)


@pytest.mark.parametrize("name", PROBLEMS)
class TestEveryKind:
    def test_a_name_too_many_is_refused_at_every_level(self, name: str) -> None:
        check.check(document_of(name))
        count = sum(1 for _ in parts_of(document_of(name)))
        assert count >= 4
        names = itertools.cycle(("remark", "neighbour", "99", "00", "", "claims", "values", "kind ", "schéma"))
        for index in range(count):
            for added in itertools.islice(names, 2):
                document = document_of(name)
                part = [*parts_of(document)][index]
                assert added not in part
                part[added] = "0x1p0"
                with pytest.raises(Refused, match=r"has no meaning there|is not an integer below"):
                    check.check(document)
        document = document_of(name)
        document["problem"]["remark"] = {"author": "nobody"}
        with pytest.raises(Refused, match="'problem', 'remark' has no meaning there"):
            check.check(document)

    def test_a_renamed_name_is_refused(self, name: str) -> None:
        """An optional part that went by another name would be a part that is not there."""
        draw = random.Random(20261123)
        parts = len([*parts_of(document_of(name))])
        for _ in range(50):
            document = document_of(name)
            part = [*parts_of(document)][draw.randrange(parts)]
            if not part:
                continue
            old = draw.choice([*part])
            others = [old.upper() + " ", f"0{old}", f"+{old}", f" {old}", f"{old}_", old[::-1] + "x", "values"]
            new = draw.choice(others)
            if new in part:
                continue
            part[new] = part.pop(old)
            with pytest.raises(Refused):
                check.check(document)

    def test_another_family_is_refused_or_changes_no_word(self, name: str, tmp_path: Path) -> None:
        said = spoken(document_of(name), tmp_path)
        assert said[0] == 0
        families: Any = (*check.FAMILIES, "Fitness", "", "fitnessforuse", None, ["FitnessForUse"], {})
        for family in families:
            document = document_of(name)
            own = document["problem"]["family"] == family
            document["problem"]["family"] = family
            try:
                check.check(document)
            except Refused:
                assert not own, family
            else:
                assert spoken(document, tmp_path) == said, family
                assert own or family in (None, "FitnessForUse", "PrivacyFirst"), family


def test_a_proof_at_a_cost_is_not_relabelled_as_one_of_targets(tmp_path: Path) -> None:
    document = document_of("privacy first")
    document["problem"]["family"] = "FitnessForUse"
    with pytest.raises(Refused, match="allowed must be 1 if the family is FitnessForUse"):
        check.check(document)
    _, words = spoken(document_of("privacy first"), tmp_path)
    _, alone = spoken(document_of("fitness"), tmp_path)
    assert "rho = " in words and words.splitlines()[1][:28] == alone.splitlines()[1][:28]


def test_names_of_tables() -> None:
    for part, added, existing, words in (
        (lambda all: all["problem"], "neighbours", None, "'problem', 'neighbours' has no meaning there"),
        (lambda all: all["problem"]["tables"][0], "00", "0", "'00' is not an integer below 2"),
        (lambda all: all["problem"]["queries"], "values", "set 1", "'problem', 'queries', 'values' has no meaning"),
    ):
        document = document_of("fitness on tables")
        part(document)[added] = "replace" if existing is None else part(document)[existing]
        with pytest.raises(Refused, match=words):
            check.check(document)


def test_a_repeated_block_is_refused_and_an_extended_family_has_its_name() -> None:
    document = document_of("fitness on tables")
    document["upper"]["blocks"].append(copy.deepcopy(document["upper"]["blocks"][0]))
    with pytest.raises(Refused, match="has no meaning there"):
        check.check(document)

    class Mine(dm.FitnessForUse):
        """A family of a user's."""

    problem = Mine(W.prefix(2), 1.0)
    assert arguments_part(problem, provable(problem))["family"] == "FitnessForUse"


def test_an_attribute_has_one_number() -> None:
    document = document_of("fitness on tables")
    table = document["problem"]["tables"][0]
    table["00"] = table["0"]
    with pytest.raises(Refused, match="'00' is not an integer below 2"):
        check.check(document)
