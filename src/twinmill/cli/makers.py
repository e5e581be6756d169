"""How a run's configuration makes machines. The only place that turns the name of a token's variable into the token."""

import os
from functools import partial

from twinmill.env.machine import make_machine
from twinmill.env.machine.remote.config import RemoteConfig, Server
from twinmill.env.reward.grading import MakeMachine


def machine_maker(backend: str, remote: RemoteConfig) -> MakeMachine:
    """Raises ValueError where a server of machines is asked for and not told, or its token is not there."""
    if backend != "remote":
        return partial(make_machine, backend)
    return partial(make_machine, backend, server=Server(remote, os.environ.get(remote.token_env, "")))
