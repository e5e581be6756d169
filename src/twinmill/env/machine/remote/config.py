"""Where remote machines are, and who we are there. Light: what merely reads a configuration needs no HTTP."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from msgspec import Struct


class RemoteConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the machines of a run are, with `machine` set to remote."""

    url: str = ""
    """of a `twinmill machines serve`: http://HOST:PORT; "" = none"""
    token_env: str = "TWINMILL_MACHINES_TOKEN"
    """NAME of the environment variable that holds the token; the token itself belongs into no configuration"""
    lease_s: float = 60.0
    """how long a machine lives when this process, or the line, is gone; the server may give less"""
    patience_s: float = 20.0
    """how long a server may be out of reach before a machine counts as lost"""
    busy_s: float = 120.0
    """how long a start waits for a place on a full server; 0 = not at all"""

    def problem(self) -> str | None:
        """What is wrong with it, and what to do; None = nothing."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            return f"remote.url must be http://HOST:PORT of a `twinmill machines serve`, not {self.url!r}"
        if not self.token_env.isidentifier():
            return "remote.token_env must be the NAME of an environment variable, and no token"
        for name in ("lease_s", "patience_s"):
            if getattr(self, name) < 1:
                return f"remote.{name} is {getattr(self, name)}; it must be at least 1 second"
        if self.busy_s < 0:
            return f"remote.busy_s is {self.busy_s}; it must be at least 0 seconds"
        return None


TOKEN_CHARACTERS = 16
"""the fewest of a token"""


def check_token(token: str, of: str) -> None:
    """Raises ValueError, which does not show it. `of`: whose it is, in words."""
    if len(token) < TOKEN_CHARACTERS:
        raise ValueError(f"the token of {of} has {len(token)} characters; it must have at least {TOKEN_CHARACTERS}")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"the token of {of} has characters that no header can carry: letters, digits and signs only")


@dataclass(frozen=True)
class Server:
    """A server of machines, and who we are to it. Raises ValueError."""

    config: RemoteConfig
    token: str = field(repr=False)

    def __post_init__(self) -> None:
        if problem := self.config.problem():
            raise ValueError(problem)
        if not self.token:
            raise ValueError(
                f"no token for the machines at {self.config.url}: the environment variable {self.config.token_env} is "
                "empty; set it to a token that the server knows (remote.token_env names the variable)"
            )
        check_token(self.token, f"the machines at {self.config.url} ({self.config.token_env})")

    @property
    def url(self) -> str:
        return self.config.url.rstrip("/")
