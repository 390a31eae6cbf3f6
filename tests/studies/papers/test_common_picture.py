"""The picture of common mechanisms: bounds that are proven, minimal, and touch what they bound."""

import numpy as np
from commanded import run

from dualmech.crosscheck.agreement import Agreement
from dualmech.studies.papers.common import examples


def test_both_bounds_are_minimal_and_touch() -> None:
    for name in examples.FAMILIES:
        found = examples.family_with_bounds(name)
        assert found.outcome is Agreement.AGREE and found.gap <= 1e-9, name
        assert np.trace(found.covariance) <= np.trace(found.other) * (1 + 1e-9), name
        assert np.linalg.det(found.volume) <= np.linalg.det(found.covariance) * (1 + 1e-7), name
        for covariance in (found.covariance, found.other, found.volume):
            least = [float(np.linalg.eigvalsh(covariance - bound)[0]) for bound in found.bounds]
            assert min(least) > -1e-9 and sum(each < 1e-4 for each in least) >= 2, name


def test_the_command_shows_them() -> None:
    result = run("crosscheck", "common/ellipses")
    assert result.exit_code == 0 and result.output.count("yes") == len(examples.FAMILIES)
