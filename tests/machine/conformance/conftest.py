"""One suite that every backend passes. A new backend is one more name here."""

import pytest

from twinmill.env.machine import native

from ..machines import Machines, RemoteMachines

REAL = ("native", "bubblewrap", "remote")
"""backends that isolate; the fake takes part where no command has to run. remote is native machines behind HTTP"""


@pytest.fixture(scope="session")
def remote(tmp_path_factory):
    with RemoteMachines(tmp_path_factory.mktemp("server")) as machines:
        yield machines


@pytest.fixture(params=REAL)
def machines(request):
    if request.param != "bubblewrap" and native.supported():
        pytest.skip(f"native machines: {native.supported()}")
    return request.getfixturevalue("remote") if request.param == "remote" else Machines(request.param)
