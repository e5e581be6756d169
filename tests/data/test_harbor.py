"""Task folders in Harbor's format are read where they lie, run, and refused by name if they need what we lack."""

import asyncio
import shutil
from pathlib import Path

import pytest

from twinmill.data.tasks.base import PlayedOracle, open_taskset
from twinmill.data.tasks.harbor import Harbor, HarborError
from twinmill.env.machine import make_machine
from twinmill.env.reward import grade
from twinmill.env.reward.validate import validate
from twinmill.records.tasks import GraderKind

SAMPLES = Path(__file__).parent / "harbor"
TASK = "harbor/fix-greeting"


def namespace(spec):
    return make_machine("namespace", spec)


@pytest.fixture
def copy(tmp_path):
    """A task folder that a test may change."""
    return Path(shutil.copytree(SAMPLES / "fix-greeting", tmp_path / "fix-greeting"))


def test_a_folder_becomes_a_task():
    found = open_taskset(f"harbor:{SAMPLES}")
    assert list(found.ids("train")) == [TASK, "harbor/needs-an-image"]
    task = found.load(TASK)
    assert task.messages[0].content.startswith("The program `src/greet.py NAME`")
    assert sorted(task.machine.files) == ["names.txt", "src/greet.py"]
    assert (task.machine.memory_bytes, task.machine.disk_bytes) == (256 << 20, 32 << 20)
    assert (task.budget.wall_s, task.grader.timeout_s, task.tags) == (120.0, 20.0, ("python", "sample"))
    assert task.grader.kind is GraderKind.COMMAND
    assert sorted(task.grader.files) == [".harbor/tests/names.txt", ".harbor/tests/test.sh"]
    assert not any("tests" in path or "solution" in path for path in task.machine.files)


def test_a_single_task_folder_is_a_set_of_one():
    assert list(Harbor(str(SAMPLES / "fix-greeting")).ids("all")) == [TASK]


def test_the_sample_holds_and_its_solution_is_played():
    found = Harbor(str(SAMPLES))
    assert isinstance(found, PlayedOracle)
    (row,) = asyncio.run(validate(found, [TASK], namespace))
    assert row.ok, row
    assert (row.empty, row.oracle, row.public) == (0.0, 1.0, None)


def test_what_an_agent_would_do_by_hand_scores():
    task = Harbor(str(SAMPLES)).load(TASK)
    right = {"src/greet.py": "import sys\nprint('Hello, %s!' % sys.argv[1])\n"}
    planted = {".harbor/tests/names.txt": "", "logs/verifier/reward.txt": "1"}
    for changed, reward in ((right, 1.0), ({"src/greet.py": "print('Hello, Ada!')"}, 0.0), (planted, 0.0)):
        assert asyncio.run(grade(task, changed, namespace, "e", 0.0)).reward == reward


def test_the_agents_machine_has_neither_tests_nor_solution():
    task = Harbor(str(SAMPLES)).load(TASK)

    async def body():
        machine = namespace(task.machine)
        await machine.start()
        try:
            return await machine.exec(["sh", "-c", "ls /tests/ /solution/ /logs/; ls /app/"], timeout_s=5)
        finally:
            await machine.close()

    result = asyncio.run(body())
    assert result.stdout == "names.txt\nsrc\n"
    assert result.stderr.count("No such file") == 3


@pytest.mark.parametrize(
    ("dockerfile", "files"),
    [
        ("FROM x\nCOPY . .\n", ["names.txt", "src/greet.py"]),
        ("FROM x\nWORKDIR /app/\nCOPY . /app\n", ["names.txt", "src/greet.py"]),
        ("FROM x\nCOPY --chown=1:1 src /app/code\n", ["code/greet.py"]),
        ("FROM x\nCOPY src/greet.py names.txt lib/\n", ["lib/greet.py", "lib/names.txt"]),
        ("FROM x\nCOPY names.txt other.txt\nCMD sleep 1\n", ["other.txt"]),
        ("FROM x\nWORKDIR /work\nADD names.txt \\\n  ./\n", ["names.txt"]),
        ("# nothing\nFROM x\n", []),
        (None, ["names.txt", "src/greet.py"]),
    ],
)
def test_what_a_dockerfile_copies(copy, dockerfile, files):
    path = copy / "environment" / "Dockerfile"
    path.unlink() if dockerfile is None else path.write_text(dockerfile)
    assert sorted(Harbor(str(copy)).load(TASK).machine.files) == files


@pytest.mark.parametrize(
    ("dockerfile", "why"),
    [
        ("FROM x\nRUN pip install numpy\n", "RUN pip install numpy"),
        ("FROM x\nENV A=1\n", "ENV A=1"),
        ("FROM x\nWORKDIR /srv\n", "WORKDIR /srv"),
        ("FROM x\nUSER app\n", "USER app"),
        ("FROM x\nCOPY names.txt /etc/\n", "leaves the working directory"),
        ("FROM x\nCOPY ../secret .\n", "finds nothing"),
        ("FROM x\nCOPY names.txt ../../etc/\n", "leaves the working directory"),
    ],
)
def test_a_dockerfile_that_needs_an_image_is_refused_by_name(copy, dockerfile, why):
    (copy / "environment" / "Dockerfile").write_text(dockerfile)
    with pytest.raises(HarborError, match=why):
        Harbor(str(copy)).load(TASK)


def test_a_task_that_needs_an_image_does_not_hold():
    (row,) = asyncio.run(validate(Harbor(str(SAMPLES)), ["harbor/needs-an-image"], namespace))
    assert not row.ok
    assert "needs an image" in row.problem


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("task.toml", "[environment\n", "task.toml"),
        ("task.toml", "[environment]\ndocker_image = 'x:1'\n", "asks for the image x:1"),
        ("tests/test.sh", None, "tests/test.sh is missing"),
        ("environment/names.txt", b"\xff\xfe", "only text files"),
    ],
)
def test_broken_folders_say_what_is_wrong(copy, path, text, why):
    target = copy / path
    if text is None:
        target.unlink()
    else:
        target.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(HarborError, match=why):
        Harbor(str(copy)).load(TASK)


def test_a_failing_solution_is_named(copy):
    (copy / "solution" / "solve.sh").write_text("echo broken >&2; exit 3\n")
    (row,) = asyncio.run(validate(Harbor(str(copy)), [TASK], namespace))
    assert "status 3: broken" in row.problem


def test_mistakes_of_the_caller(tmp_path):
    with pytest.raises(HarborError, match="no folder"):
        open_taskset(f"harbor:{tmp_path / 'nowhere'}")
    with pytest.raises(HarborError, match=r"no task\.toml"):
        open_taskset(f"harbor:{tmp_path}")
    with pytest.raises(HarborError, match="there are harbor/fix-greeting"):
        Harbor(str(SAMPLES)).load("harbor/other")
    with pytest.raises(ValueError, match="splits all"):
        Harbor(str(SAMPLES)).ids("validation")
