"""mini-swe-agent from PyPI, unmodified, pointed at a session's base_url: it works, and what it did is an episode."""

import pytest

from twinmill.batch.samples import assemble
from twinmill.records.episodes import OpenedBy
from twinmill.store.blobs import open_blobs
from twinmill.store.ledger import EpisodesLog

from .rigs import Reciter, bash, nano, running, text
from .test_sessions import load


@pytest.mark.slow
def test_mini_swe_agent_is_trained_unmodified(tmp_path, monkeypatch):
    for name, value in {
        "MSWEA_GLOBAL_CONFIG_DIR": tmp_path / "config", "MSWEA_SILENT_STARTUP": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))
    pytest.importorskip("minisweagent", reason="pip install mini-swe-agent, or the extra `foreign`")
    import yaml
    from minisweagent import package_dir
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    work = tmp_path / "work"
    work.mkdir()
    turns = [
        bash("echo 'print(1)' > fixed.py", "First the fix."),
        text("I think that is all."),  # no call: the harness forgets that it was said, and complains
        bash("cat fixed.py"),
        bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat fixed.py"),
    ]
    engine = Reciter(turns, version=2)
    blobs = open_blobs(f"file://{tmp_path}/store")
    settings = yaml.safe_load((package_dir / "config" / "mini.yaml").read_text())
    agent_settings = {key: settings["agent"][key] for key in ("system_template", "instance_template")}
    templates = {key: settings["model"][key] for key in ("observation_template", "format_error_template")}
    with running(engine, blobs=blobs, keys=("mine",), context_tokens=32_768) as on:
        session = on.session("fix/1", key="mine")
        model = LitellmModel(
            model_name="openai/gpt-of-the-product",
            model_kwargs={
                "api_base": session["base_url"],
                "api_key": session["api_key"],
                **settings["model"]["model_kwargs"],
            },
            cost_tracking="ignore_errors",
            **templates,
        )
        agent = DefaultAgent(model, LocalEnvironment(cwd=str(work)), **agent_settings)
        ended = agent.run("Make fixed.py print 1.")
        assert ended == {"exit_status": "Submitted", "submission": "print(1)\n"}
        reward = 1.0 if (work / "fixed.py").read_text() == "print(1)\n" else 0.0
        assert on.reward(session, reward, key="mine").json()["group_complete"]
    log = EpisodesLog(blobs)
    group = log.group_of(log.close_of(0))
    [episode] = group.episodes_G
    assert [turn.sampled_ids for segment in episode.segments for turn in segment.turns] == turns
    assert [s.opened_by for s in episode.segments] == [OpenedBy.TASK, OpenedBy.RESTORE], (
        "it went back behind what it forgot"
    )
    assert '"returncode": 0' in episode.segments[0].turns[0].observation
    again = nano().decode(episode.segments[1].turns[0].input_ids)
    assert "First the fix.<|call|>bash" in again and "I think that is all" not in again and "Tool call error" in again
    attempts = assemble(group, load(blobs))
    assert (len(attempts.samples_S), attempts.rewards_G.tolist(), attempts.rejected) == (2, [1.0], ())
