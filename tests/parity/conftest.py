"""Every parity test runs once per loader class; what is expected must hold for torch's own loader too."""

from typing import Any

import pytest
import torch.utils.data


@pytest.fixture(scope="session", params=["torch", "headrace"])
def loader_class(request: pytest.FixtureRequest) -> Any:
    """The class under test. ``pytest -k torch`` runs the half that validates the expectations."""
    if request.param == "torch":
        return torch.utils.data.DataLoader
    import headrace

    return headrace.DataLoader
