"""Tests of the embedded engine run once with each of its backends."""

import pytest

from twinmill.model.core import available

from . import rigs


@pytest.fixture(params=["torch", "core"])
def backend(request, monkeypatch):
    """Which backend `rigs.serving` uses, and in whose bits `rigs.model` computes."""
    if request.param == "core" and not available():
        pytest.skip("the native core is not built")
    monkeypatch.setattr(rigs, "BACKEND", request.param)
    return request.param
