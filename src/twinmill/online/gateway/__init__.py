"""An OpenAI-compatible server on any engine; sessions in it are recorded as episodes.

config      GatewayConfig: names and limits
refusals    everything that is refused, as OpenAI's clients expect it
requests    what clients send; replies: what they get
prompts     what a request says so far, as ids, with what was said before taken over as it was
speech      one model call in slices: text as it grows, stop strings
sessions    one attempt of a foreign harness: segments and turns, token-exact
slots       groups of sessions -> slots of the episodes log
app         routes, keys, limits
run         a socket, a server, a graceful end
"""

from .app import Gateway
from .config import GatewayConfig

__all__ = ["Gateway", "GatewayConfig"]
