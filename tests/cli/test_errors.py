"""Which errors are words for people, and which are bugs that keep their traceback."""

import asyncio

import pytest

from twinmill.cli.errors import causes, expected, explained
from twinmill.store.errors import StoreUnavailable


def raised_by(code: str) -> BaseException:
    """What `code` raises when it stands in a file of ours."""
    try:
        exec(compile(code, "/somewhere/twinmill/store/x.py", "exec"), {})
    except BaseException as error:
        return error
    raise AssertionError(f"{code} raised nothing")


@pytest.mark.parametrize(
    ("code", "ours"),
    [
        ("raise ValueError('the level must be 0 to 3')", True),
        ("raise FileExistsError('there is one')", True),
        ("raise ModuleNotFoundError('pip install it')", True),
        ("int('x')", False),
        ("[].index(3)", False),
        ("raise TypeError('x')", False),
        ("{}['a']", False),
        ("import nothing_of_this_name", False),
        ("open('/nowhere/at/all')", True),
    ],
)
def test_only_what_was_raised_on_purpose_is_expected(code: str, ours: bool) -> None:
    assert expected(raised_by(code)) is ours


def test_a_value_error_of_a_library_is_a_bug() -> None:
    with pytest.raises(ValueError) as error:
        raise ValueError("not in a file of ours")
    assert not expected(error.value)


def test_an_error_of_ours_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end, explained():
        raise StoreUnavailable("the store is away; resume the run later")
    assert end.value.code == 2
    assert capfd.readouterr().err == "error: the store is away; resume the run later\n"


def test_a_bug_passes() -> None:
    with pytest.raises(ZeroDivisionError), explained():
        print(1 / 0)


def test_ctrl_c_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end, explained():
        raise KeyboardInterrupt
    assert end.value.code == 130
    assert capfd.readouterr() == ("", "")


def test_a_group_of_tasks_dies_of_its_causes() -> None:
    async def away() -> None:
        raise StoreUnavailable("away")

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(away())
            group.create_task(away())

    with pytest.raises(BaseExceptionGroup) as error:
        asyncio.run(both())
    assert [str(cause) for cause in causes(error.value)] == ["away", "away"]
