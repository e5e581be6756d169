"""Which bits the trainer computes in."""

import pytest

from tests.model.sizes import KIMI, TINY
from twinmill.cli.proc.trainer import parity_with
from twinmill.engine.embedded import EngineConfig
from twinmill.engine.embedded.config import backend_of
from twinmill.model.config import Parity


def test_strict_means_the_bits_of_whoever_computes_for_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parity_with(Parity.STRICT, EngineConfig(backend="core"), TINY) is Parity.CORE
    assert parity_with(Parity.STRICT, EngineConfig(backend="torch"), TINY) is Parity.STRICT
    for built, wanted in ((True, Parity.CORE), (False, Parity.STRICT)):
        monkeypatch.setattr("twinmill.model.core.available", lambda built=built: built)
        assert parity_with(Parity.STRICT, EngineConfig(), TINY) is wanted
        assert parity_with(Parity.OFF, EngineConfig(), TINY) is Parity.OFF


def test_a_model_that_the_core_lacks_is_computed_by_torch_and_strict_means_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("twinmill.model.core.available", lambda: True)
    assert backend_of(EngineConfig(), TINY).backend == "core"
    chosen = backend_of(EngineConfig(), KIMI)
    assert chosen == ("torch", "the native core has no multi-head latent attention (deepseek_v3)")
    assert parity_with(Parity.STRICT, EngineConfig(), KIMI) is Parity.STRICT
    monkeypatch.setattr("twinmill.model.core.available", lambda: False)
    assert "not built" in backend_of(EngineConfig(), KIMI).why
