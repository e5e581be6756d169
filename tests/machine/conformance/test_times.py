"""What the host reads leaves no mark, what a command reads does: honeypots depend on it (env/harness/traces.py)."""

import pytest

SECRET = "conf/secret.txt"


async def times(machine):
    found = await machine.exec(["stat", "--printf", "%.9X %.9Y %.9Z", SECRET], timeout_s=10)
    assert found.return_code == 0, found.stderr
    return found.stdout.split()


def test_get_leaves_every_time_of_a_file_alone(machines):
    async def body(machine):
        before = await times(machine)
        assert await machine.get(["**"]) == {SECRET: b"x"}
        return before, await times(machine)

    before, after = machines.play(body, files={SECRET: "x"})
    assert before == after


@pytest.mark.parametrize(
    "command",
    [["cat", SECRET], ["python3", "-c", f"open({SECRET!r}).read()"], ["sh", "-c", f"cat < {SECRET} > /tmp/copy"]],
    ids=["cat", "python", "shell"],
)
def test_what_a_command_reads_moves_its_access_time(machines, command):
    async def body(machine):
        await machine.get(["**"])
        before = await times(machine)
        assert (await machine.exec(command, timeout_s=10)).return_code == 0
        return before, await times(machine)

    before, after = machines.play(body, files={SECRET: "x"})
    assert before[0] != after[0] and before[1:] == after[1:]


def test_a_time_put_back_shows_in_the_status_time(machines):
    async def body(machine):
        before = await times(machine)
        hide = f't=$(stat -c %x {SECRET}); cat {SECRET}; touch -a -d "$t" {SECRET}'
        assert (await machine.exec(["sh", "-c", hide], timeout_s=10)).return_code == 0
        return before, await times(machine)

    before, after = machines.play(body, files={SECRET: "x"})
    assert before[2] != after[2]


def test_get_of_a_file_nobody_may_read_leaves_it_out(machines):
    async def body(machine):
        await machine.exec(["sh", "-c", f"chmod 0 {SECRET}"], timeout_s=10)
        return await machine.get(["**"])

    assert machines.play(body, files={SECRET: "x", "open.txt": "y"}) == {"open.txt": b"y"}


def test_a_fork_sees_who_reads_what_it_inherited(machines):
    async def body(machine):
        own = await times(machine)
        [child] = await machine.fork(1)
        assert await times(machine) == own
        try:
            before = await times(child)
            assert await child.get(["**"]) == {SECRET: b"x"}
            untouched = await times(child)
            await child.exec(["cat", SECRET], timeout_s=10)
            return before, untouched, await times(child)
        finally:
            await child.close()

    before, untouched, after = machines.play(body, files={SECRET: "x"}, needs=("access-times",))
    assert before == untouched
    assert before[0] != after[0]
