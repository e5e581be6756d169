"""One suite that every backend passes. A new backend is one more name here."""

import pytest

from twinmill.env.machine import native

from ..machines import Machines

REAL = ("native", "bubblewrap")
"""backends that isolate; the fake takes part where no command has to run"""


@pytest.fixture(params=REAL)
def machines(request):
    if request.param == "native" and native.supported():
        pytest.skip(f"native machines: {native.supported()}")
    return Machines(request.param)
