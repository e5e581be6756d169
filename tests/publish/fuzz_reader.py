"""A coverage-guided fuzzer at work on fuzz_checks.py, for a bounded time.

    python -m tests.publish.fuzz_reader SECONDS CORPUS_FOLDER        (needs atheris: pip install 'twinmill[fuzz]')

Starts from sound bytes of every kind. An input that breaks something is printed, kept as `crash-...` in the folder beside the
corpus, and ends the program with an exit code other than 0.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["twinmill.publish.wdx", "twinmill.publish.container", "twinmill.store.frame"]):
    from tests.publish.fuzz_checks import check, seeds


def main(seconds: int, corpus: Path) -> None:
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(data)
    options = [
        f"-max_total_time={seconds}",
        f"-artifact_prefix={corpus.parent}/",
        "-max_len=4096",
        "-timeout=30",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], check)
    atheris.Fuzz()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
