"""An engine in another process: many calls at once, and every way in which the other side can fail."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from twinmill.engine.base import ContextTooLong, EngineError
from twinmill.engine.client import ClientConfig, EngineClient
from twinmill.engine.scripted import Said, ScriptedEngine
from twinmill.engine.server import EngineServer
from twinmill.records.engines import KvPolicy, ScoreRequest

from .rigs import ask, run

QUICK = ClientConfig(connect_s=0.5, silence_s=0.8, generate_s=5.0, state_s=2.0)
SERVE = """
import asyncio, sys
from twinmill.engine.scripted import Said, ScriptedEngine
from twinmill.engine.server import EngineServer
async def main():
    engine = ScriptedEngine(lambda request: Said([7], delay_s=float(request.token_ids[0])))
    async with EngineServer(engine, sys.argv[1]):
        print("up", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


def start(path: Path) -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", SERVE, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    return process


def test_calls_are_answered_side_by_side_and_to_the_right_caller(tmp_path):
    def policy(request):
        return Said([request.token_ids[0], 2], delay_s=0.2 if request.token_ids[0] % 2 else 0.0)

    async def main():
        engine = ScriptedEngine(policy, experts=(2, 1, 3))
        async with EngineServer(engine, tmp_path / "e.sock"), EngineClient(tmp_path / "e.sock", QUICK) as client:
            began = time.monotonic()
            outs = await asyncio.gather(*(client.generate(ask([i], f"s{i}")) for i in range(40)))
            assert time.monotonic() - began < 2
            assert [out.sampled_ids[0] for out in outs] == list(range(40))
            assert outs[3] == await engine.generate(ask([3], "s3"))
            assert (await client.score(ScoreRequest(token_ids=[1, 2, 3]))).logprobs == [-0.5, -0.5]
            assert (await client.state()).engine_id == "scripted"
            for call in (client.stage(1, {}), client.flip(KvPolicy.KEEP)):
                with pytest.raises(EngineError):
                    await call
        assert not (tmp_path / "e.sock").exists()

    run(main())


def test_errors_keep_their_type_and_an_engines_bug_is_answered(tmp_path):
    class Odd(ScriptedEngine):
        async def score(self, request):
            if len(request.token_ids) > 3:
                raise ContextTooLong("4 tokens")
            raise ZeroDivisionError("oh")

    async def main():
        engine = Odd(lambda _: [1])
        async with EngineServer(engine, tmp_path / "e.sock"), EngineClient(tmp_path / "e.sock", QUICK) as client:
            with pytest.raises(ContextTooLong, match="4 tokens"):
                await client.score(ScoreRequest(token_ids=[1] * 4))
            with pytest.raises(EngineError, match="ZeroDivisionError: oh"):
                await client.score(ScoreRequest(token_ids=[1]))
            engine.lose("gone")
            with pytest.raises(EngineError, match="gone"):
                await client.generate(ask([1]))

    run(main())


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_caller_that_gives_up_frees_the_engine(tmp_path, how):
    async def main():
        engine = ScriptedEngine(lambda _: Said([1], delay_s=60), deadline_s=90)
        async with EngineServer(engine, tmp_path / "e.sock"):
            client = EngineClient(tmp_path / "e.sock", QUICK)
            task = asyncio.create_task(client.generate(ask([1])))
            while (await engine.state()).in_flight == 0:
                await asyncio.sleep(0.01)
            if how == "cancel":
                task.cancel()
            else:
                await client.close()
            with pytest.raises((asyncio.CancelledError, EngineError)):
                await task
            async with asyncio.timeout(5):
                while (await engine.state()).in_flight:
                    await asyncio.sleep(0.01)
            await client.close()

    run(main())


def test_a_call_has_a_deadline_though_the_engine_is_alive(tmp_path):
    async def main():
        engine = ScriptedEngine(lambda _: Said([1], delay_s=60), deadline_s=90)
        config = ClientConfig(silence_s=0.4, generate_s=1.2)
        async with EngineServer(engine, tmp_path / "e.sock"), EngineClient(tmp_path / "e.sock", config) as client:
            began = time.monotonic()
            with pytest.raises(EngineError, match=r"no answer within 1\.2 s"):
                await client.generate(ask([1]))
            assert 1.1 < time.monotonic() - began < 3

    run(main())


def test_a_stopped_engine_is_noticed_and_a_restarted_one_is_found(tmp_path):
    path = tmp_path / "e.sock"

    async def main(process):
        async with EngineClient(path, QUICK) as client:
            assert (await client.generate(ask([0]))).sampled_ids == [7]
            os.kill(process.pid, signal.SIGSTOP)
            began = time.monotonic()
            with pytest.raises(EngineError, match="hangs"):
                await client.generate(ask([0]))
            assert time.monotonic() - began < 3
            process.kill()
            process.wait()
            with pytest.raises(EngineError, match="no engine listens"):
                await client.generate(ask([0]))
            again = start(path)  # the dead one's socket file is still there
            try:
                assert (await client.generate(ask([0]))).sampled_ids == [7]
                waiting = asyncio.create_task(client.generate(ask([30])))
                await asyncio.sleep(0.3)
                again.kill()
                with pytest.raises(EngineError, match="closed its socket"):
                    await waiting
            finally:
                again.kill()
                again.wait()
                again.stdout.close()

    process = start(path)
    try:
        run(main(process))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_client_that_stands_still_does_not_blame_the_engine(tmp_path):
    async def main():
        engine = ScriptedEngine(lambda _: Said([1], delay_s=1.5))
        async with EngineServer(engine, tmp_path / "e.sock"), EngineClient(tmp_path / "e.sock", QUICK) as client:
            task = asyncio.create_task(client.generate(ask([1])))
            await asyncio.sleep(0.3)
            time.sleep(1.2)
            return await task

    assert run(main()).sampled_ids == [1]


def test_rubbish_is_refused_on_both_sides(tmp_path):
    async def main():
        async with EngineServer(ScriptedEngine(lambda _: [1]), tmp_path / "e.sock"):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "e.sock")
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await reader.read() == b""
            writer.close()
            async with EngineClient(tmp_path / "e.sock", QUICK) as client:
                assert (await client.generate(ask([1]))).sampled_ids == [1]

        async def talk(_, writer):
            writer.write(b"\x05\x00\x00\x00hello")
            await writer.drain()

        server = await asyncio.start_unix_server(talk, tmp_path / "odd.sock")
        async with server, EngineClient(tmp_path / "odd.sock", QUICK) as client:
            with pytest.raises(EngineError, match="rubbish"):
                await client.generate(ask([1]))

    run(main())
