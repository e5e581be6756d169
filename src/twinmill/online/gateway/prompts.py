"""What a request says so far: messages, a text, or ids. And how it goes on from what was said before, token-exact."""

from dataclasses import dataclass

from msgspec import structs

from twinmill.data.render import Renderer, RenderError
from twinmill.records.tasks import Message, ToolSpec

from .refusals import BadRequest

History = tuple[Message, ...] | str | tuple[int, ...]


@dataclass(frozen=True)
class Prompt:
    """`history` is a chat's messages, a completion's text, or its ids. All three are compared, cut and joined alike."""

    history: History
    tools: tuple[ToolSpec, ...] = ()

    def extends(self, said: "Prompt") -> bool:
        """Does this go on from `said`, with something new?"""
        if type(self.history) is not type(said.history) or len(self.history) <= len(said.history):
            return False
        if self.tools != said.tools:
            return False
        start = self.history[: len(said.history)]
        return start == said.history or _bare(start) == _bare(said.history)

    def rest(self, said: "Prompt") -> "Prompt":
        """What this adds to `said`."""
        return Prompt(self.history[len(said.history) :], self.tools)

    def answered(self, answer: Message, ids: tuple[int, ...]) -> "Prompt":
        """This, and what the model said to it, as the client saw it."""
        if isinstance(self.history, str):
            return Prompt(self.history + answer.content, self.tools)
        said = (answer,) if not self.history or isinstance(self.history[0], Message) else ids
        return Prompt((*self.history, *said), self.tools)

    def opening_ids(self, renderer: Renderer) -> list[int]:
        """A fresh context."""
        if isinstance(self.history, str):
            return [renderer.start_id, *renderer.text_ids(self.history)]
        return self._ids(renderer, None)

    def following_ids(self, renderer: Renderer, sampled_ids: list[int]) -> list[int]:
        """Appended to a context that ends with `sampled_ids`, which stay as they are."""
        return renderer.text_ids(self.history) if isinstance(self.history, str) else self._ids(renderer, sampled_ids)

    def text(self) -> str:
        """For people: what a turn observed."""
        if isinstance(self.history, str):
            return self.history
        return "\n".join(part.content for part in self.history if isinstance(part, Message))

    def _ids(self, renderer: Renderer, sampled_ids: list[int] | None) -> list[int]:
        messages = [part for part in self.history if isinstance(part, Message)]
        ids = [part for part in self.history if isinstance(part, int)]
        if ids:
            if min(ids) < 0 or max(ids) >= renderer.vocab_size:
                raise BadRequest(f"token ids lie in 0..{renderer.vocab_size - 1}", "prompt")
            return ids
        if not messages:
            raise BadRequest("the prompt is empty: give at least one token id", "prompt")
        try:
            if sampled_ids is None:
                return renderer.open(messages, self.tools)
            return renderer.follow(sampled_ids, messages, self.tools)
        except RenderError as error:
            raise BadRequest(str(error), "messages") from None


def _bare(history: History) -> History:
    """Without the space around what the model said: harnesses strip it, and its ids are known anyway."""
    if isinstance(history, str) or not history or not isinstance(history[0], Message):
        return history
    return tuple(
        structs.replace(part, content=part.content.strip()) if part.role == "assistant" else part for part in history
    )
