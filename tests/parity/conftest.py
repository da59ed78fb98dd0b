"""Every parity test runs once per loader class; what is expected must hold for torch's own loader too."""

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data


@pytest.fixture(scope="session", params=["torch", "headrace"])
def loader_class(request: pytest.FixtureRequest) -> Any:
    """The class under test. ``pytest -k torch`` runs the half that validates the expectations."""
    if request.param == "torch":
        return torch.utils.data.DataLoader
    import headrace

    return headrace.DataLoader


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    """A failure that depends on random numbers can be run again as it was."""
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
