"""GatewayConfig: what a gateway calls itself, and how much it takes."""

from twinmill.records.base import Record


class GatewayConfig(Record):
    """Names and limits of a gateway."""

    model: str
    """the name under which the model is served"""
    context_tokens: int
    """longest context of the engine, sampled tokens included"""
    turn_tokens: int = 4096
    """most tokens that one call may sample"""
    choices: int = 16
    """most answers that one call may ask for: prompts times n"""
    calls: int = 64
    """model calls at once; further ones are told to come again (429)"""
    body_bytes: int = 8 * 2**20
    """longest body of a request"""
    body_s: float = 30.0
    """how long a client may take to send its body, seconds"""
    slice_tokens: int = 16
    """tokens sampled between two looks at the text, where a client streams or gave stop strings. Sampling is a pure function
    of weights, prefix and seed, so slices change nothing in what is said"""
    sessions: int = 1024
    """sessions open at once"""
    idle_s: float = 3600.0
    """a session, or a group that waits for more sessions, ends ungraded when nothing was heard of it for so long, seconds"""
    experts: bool = True
    """record the expert choice of every position of a session, for router replay; a dense model has none"""
    cluster: str = "gateway"
    """the gateway's name in the episodes log: its lane there, which has one writer"""
    beat_s: float = 5.0
    """between two signs of life in the store, by which a second gateway of this name finds out that it is one, seconds"""
    seed: int = 0
    """of the sessions' sampling, where they bring none of their own"""

    def __post_init__(self) -> None:
        for name in ("context_tokens", "turn_tokens", "choices", "calls", "body_bytes", "slice_tokens", "sessions"):
            if getattr(self, name) < 1:
                raise ValueError(f"gateway.{name} = {getattr(self, name)}: must be at least 1")
        for name in ("body_s", "idle_s", "beat_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"gateway.{name} = {getattr(self, name)}: must be positive")
