"""Task set `unopened`: tinyrepo:0 whose instruction names the failing case and the file, and does not show it.

Who has not written the fault must open the file to mend it, as in every larger repository. The scripted expert knows the
answer and opens it only when its style says so (`Style.reads`); from such transcripts alone nobody learns that
looking pays. That gap between an expert who knows and a student who must find out (2007.12173) is what RL can close.
"""

from .tinyrepo import PUBLIC, Broken, TinyRepo, cases


class Unopened(TinyRepo):
    name = "unopened"

    def __init__(self) -> None:
        super().__init__(0)

    @property
    def spec(self) -> str:
        return self.name

    def instruction(self, repo: Broken) -> str:
        return f"Fix {repo.path}. {cases.report(repo.bad, repo.cases[:PUBLIC])}"
