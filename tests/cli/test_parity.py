"""Which bits the trainer computes in."""

import pytest

from twinmill.cli.proc.trainer import parity_with
from twinmill.engine.embedded import EngineConfig
from twinmill.model.config import Parity


def test_strict_means_the_bits_of_whoever_computes_for_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parity_with(Parity.STRICT, EngineConfig(backend="core")) is Parity.CORE
    assert parity_with(Parity.STRICT, EngineConfig(backend="torch")) is Parity.STRICT
    for built, wanted in ((True, Parity.CORE), (False, Parity.STRICT)):
        monkeypatch.setattr("twinmill.model.core.available", lambda built=built: built)
        assert parity_with(Parity.STRICT, EngineConfig()) is wanted
        assert parity_with(Parity.OFF, EngineConfig()) is Parity.OFF
