"""The picture of common mechanisms: bounds that are proven, minimal, and touch what they bound."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.command.main import app
from dualmech.crosscheck.papers.common import picture


@pytest.mark.parametrize("name", picture.FAMILIES)
def test_both_bounds_are_minimal_and_touch(name: str) -> None:
    found = picture.family_with_bounds(name)
    assert found.outcome is Agreement.AGREE and found.gap <= 1e-9
    assert np.trace(found.covariance) <= np.trace(found.other) * (1 + 1e-9)
    for covariance in (found.covariance, found.other):
        for bound in found.bounds:
            least, _ = np.linalg.eigvalsh(covariance - bound)
            assert -1e-9 < least < 1e-4


def test_the_command_shows_them() -> None:
    result = CliRunner().invoke(app, ["crosscheck", "common/ellipses"])
    assert result.exit_code == 0 and result.output.count("yes") == len(picture.FAMILIES)
