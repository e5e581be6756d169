"""Schema-driven: requests made from /openapi.json itself, right ones and wrong ones."""

import pytest

from twinmill.store.blobs import open_blobs

from .rigs import nano, running
from .test_bad_input import check


@pytest.mark.slow
@pytest.mark.timeout(1200)  # thousands of requests, on a machine that may be busy
def test_nothing_that_the_schema_can_say_crashes_the_server(tmp_path):
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings

    from twinmill.engine.scripted import ScriptedEngine

    engine = ScriptedEngine(lambda request: [(k * k + len(request.token_ids)) % nano().vocab_size for k in range(30)])
    blobs = open_blobs(f"file://{tmp_path}/store")
    with running(engine, blobs=blobs, sessions=100_000, context_tokens=256) as on, on.http() as http:
        session = on.session()
        schema = schemathesis.openapi.from_url(f"{on.url}/openapi.json")
        statuses = set()
        for found in schema.get_all_operations():
            operation = found.ok()

            @given(case=operation.as_strategy())
            @settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)
            def play(case):
                if "session" in case.path_parameters and case.method != "DELETE" and "reward" not in case.path:
                    case.path_parameters["session"] = session["id"]
                sent = case.as_transport_kwargs(base_url=on.url)
                body = {key: sent[key] for key in ("json", "content", "data") if key in sent and sent[key] is not None}
                headers = {key: value for key, value in sent["headers"].items() if key.lower() == "content-type"}
                answer = http.request(sent["method"], sent["url"], headers=headers, **body)
                statuses.add(answer.status_code)
                check(answer)

            play()
    assert {200, 201, 400, 404} <= statuses
