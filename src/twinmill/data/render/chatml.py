"""ChatML with Hermes tool calls for models that do not think aloud: SmolLM2, Qwen2.5. No family's own default system
message is added: what a task says is all that is said."""

from .qwen3 import Qwen3Renderer


class ChatmlRenderer(Qwen3Renderer):
    opening = ""
