"""``loadgate serve`` as users run it: a process, a port, signals."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.integrations.served import APP, Served, living
from tests.integrations.serving import Http1
from tests.programs import PATIENCE

BACKENDS = ["uvloop", "asyncio", "trio"]

POLICY = """
[[rates]]
name = "per-client"
rate = "{rate}/hour"
key = "client"

[concurrency]
algorithm = "fixed"
initial = 3

[queue]
max_wait = 0.0
"""


def policy_file(directory: Path, rate: int = 10) -> Path:
    path = directory / "policy.toml"
    path.write_text(POLICY.format(rate=rate))
    return path


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_counts_of_the_metrics_equal_what_was_sent(tmp_path: Path, backend: str) -> None:
    policy = policy_file(tmp_path, rate=10)
    with Served(tmp_path, "--policy", str(policy), "--backend", backend) as served:
        with httpx.Client(base_url=served.url, timeout=PATIENCE) as client:
            answers = [client.get("/work") for _ in range(15)]
        assert [answer.status_code for answer in answers] == [200] * 10 + [429] * 5
        assert int(answers[-1].headers["retry-after"]) == pytest.approx(360, abs=5)

        assert httpx.get(f"{served.ops}/healthz").text == "ok\n"
        assert httpx.get(f"{served.ops}/readyz").status_code == 200
        requests = "loadgate_requests_total"
        assert served.metric(requests, decision="admitted", reason="none") == 10
        assert served.metric(requests, decision="rate_limited", reason="rate") == 5
        assert served.metric(requests, decision="overloaded", reason="queue_full") == 0
        assert served.metric("loadgate_finished_total", outcome="success") == 10
        assert served.metric("loadgate_latency_seconds_count") == 10
        decisions = "loadgate_rate_decisions_total"
        assert served.metric(decisions, rate="per-client", decision="refused") == 5
        assert served.metric("loadgate_in_flight") == 0
        assert served.metric("loadgate_limit") == 3

        assert "reason=rate" in served.log()

        served.signal(signal.SIGTERM)
        served.line("the app was told to shut down")
        assert served.ended() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_sigterm_lets_running_requests_finish_and_refuses_new_ones(
    tmp_path: Path, backend: str
) -> None:
    options = ("--policy", str(policy_file(tmp_path)), "--backend", backend)
    with (
        ThreadPoolExecutor() as threads,
        Served(tmp_path, *options, "--exempt", "/release") as served,
    ):
        held = [threads.submit(served.get, "/hold") for _ in range(3)]
        served.until(lambda: served.metric("loadgate_in_flight") == 3)
        refused = served.get("/work")
        assert refused.status_code == 503

        served.signal(signal.SIGTERM)
        served.until(lambda: httpx.get(f"{served.ops}/readyz").status_code == 503)
        assert httpx.get(f"{served.ops}/readyz").text == "draining\n"
        assert httpx.get(f"{served.ops}/healthz").status_code == 200
        assert served.get("/work").status_code == 503
        reason = served.metric("loadgate_requests_total", decision="overloaded", reason="draining")
        assert reason == 1

        assert served.get("/release").status_code == 200
        assert [answer.result(PATIENCE).text for answer in held] == ["/hold"] * 3
        assert served.ended() == 0
        assert "3 running" in served.log()


def test_what_there_is_at_the_start_is_not_searched_for_garbage(tmp_path: Path) -> None:
    app = """
import gc

async def app(scope, receive, send):
    if scope["type"] != "http":
        raise NotImplementedError
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(gc.get_freeze_count()).encode()})
"""
    with Served(tmp_path, app=app) as served:
        assert int(served.get("/").text) > 1000


@pytest.mark.parametrize(
    ("backend", "door"),
    [("uvloop", "answer"), ("uvloop", "off"), ("asyncio", "answer"), ("trio", "off")],
)
@pytest.mark.parametrize("before", ["/idle", "/busy"])
def test_an_app_that_ends_the_process_ends_it_whatever_its_threads_do(
    tmp_path: Path, before: str, backend: str, door: str
) -> None:
    app = """
import sys
import threading
import anyio

async def app(scope, receive, send):
    if scope["type"] != "http":
        raise NotImplementedError
    if scope["path"] == "/idle":
        await anyio.to_thread.run_sync(int)
    if scope["path"] == "/busy":
        print("busy", flush=True)
        await anyio.to_thread.run_sync(threading.Event().wait)
    if scope["path"] == "/exit":
        sys.exit(3)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})
"""
    options = ("--backend", backend, "--door", door, "--graceful-timeout", "0.5")
    with ThreadPoolExecutor() as threads, Served(tmp_path, *options, app=app) as served:
        first = threads.submit(served.get, before)
        if before == "/busy":
            served.line("busy")
        else:
            assert first.result(PATIENCE).status_code == 200
        with suppress(httpx.TransportError):
            assert served.get("/exit").status_code == 500
        assert served.ended() == 3
        assert ("is dropped" in served.log()) == (before == "/busy")


def test_no_answer_is_cut_short_when_a_busy_server_drains(tmp_path: Path) -> None:
    def ask(served: Served) -> list[int]:
        statuses: list[int] = []
        while True:
            try:
                answer = served.get("/work")
            except httpx.ConnectError:
                return statuses
            except httpx.ReadError:
                continue  # accepted by the kernel when the server had already stopped listening
            except httpx.RemoteProtocolError as error:
                if "without sending a response" not in str(error):
                    raise
                continue  # accepted, and closed before the request was read
            assert answer.status_code != 200 or answer.text == "/work"
            statuses.append(answer.status_code)

    with ThreadPoolExecutor() as threads, Served(tmp_path) as served:
        clients = [threads.submit(ask, served) for _ in range(4)]
        served.until(lambda: served.metric("loadgate_finished_total", outcome="success") > 40)
        served.signal(signal.SIGTERM)
        statuses = [status for client in clients for status in client.result(PATIENCE)]
        assert served.ended() == 0
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) > 40


def test_rates_can_count_addresses_and_networks_without_any_code(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        "[[rates]]\nname = 'address'\nrate = '100/hour'\nkey = 'address'\n"
        "[[rates]]\nname = 'network'\nrate = '3/hour'\nkey = 'network'\n"
    )
    with Served(tmp_path, "--policy", str(policy)) as served:
        assert [served.get("/").status_code for _ in range(4)] == [200, 200, 200, 429]
        assert served.metric("loadgate_rate_missing_total", rate="network") == 0


def test_a_function_of_the_users_can_say_who_asks(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("[[rates]]\nname = 'a'\nrate = '1/hour'\nkey = 'account'\n")
    (tmp_path / "who.py").write_text(
        "def account(scope): return {'account': dict(scope['headers'])[b'x-account'].decode()}\n"
    )
    options = ("--policy", str(policy), "--identify", "who:account")
    with Served(tmp_path, *options) as served:
        for account, status in (("one", 200), ("two", 200), ("one", 429)):
            answer = httpx.get(served.url, headers={"x-account": account}, timeout=PATIENCE)
            assert answer.status_code == status


@pytest.mark.parametrize("backend", ["uvloop", "trio"])
def test_a_drain_is_bounded_when_a_request_never_ends(tmp_path: Path, backend: str) -> None:
    options = ("--graceful-timeout", "0.2", "--backend", backend)
    with ThreadPoolExecutor() as threads, Served(tmp_path, *options) as served:
        held = threads.submit(served.get, "/hold")
        served.until(lambda: served.metric("loadgate_in_flight") == 1)
        served.signal(signal.SIGINT)
        assert served.ended() == 0
        assert "1 still running after 0.2 s" in served.log()
        error = held.exception(PATIENCE)
        assert isinstance(error, httpx.HTTPError) or held.result().status_code == 500


@pytest.mark.parametrize(
    ("backend", "door"),
    [("uvloop", "answer"), ("uvloop", "off"), ("asyncio", "answer"), ("trio", "off")],
)
def test_clients_that_pipeline_and_leave_do_not_keep_a_server_that_was_told_to_stop(
    tmp_path: Path, backend: str, door: str
) -> None:
    app = living(
        """
import anyio

async def app(scope, receive, send):
    await anyio.sleep(0.01)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"answered"})
"""
    )

    def flood(port: int) -> None:
        while True:
            try:
                with Http1(port) as client:
                    client.send(client.head("GET", "/", None) * 3)
                    client.socket.recv(1000)
            except ConnectionRefusedError:
                return
            except ConnectionError:
                continue

    options = ("--graceful-timeout", "3000", "--backend", backend, "--door", door)
    with ThreadPoolExecutor() as threads, Served(tmp_path, *options, app=app) as served:
        port = int(served.url.rpartition(":")[2])
        clients = [threads.submit(flood, port) for _ in range(4)]
        served.until(lambda: served.metric("loadgate_finished_total", outcome="success") > 40)
        served.signal(signal.SIGTERM)
        assert served.ended() == 0
        for client in clients:
            client.result(PATIENCE)
        assert "are cancelled" not in served.log()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once_and_quietly(
    tmp_path: Path, backend: str, number: signal.Signals
) -> None:
    options = ("--graceful-timeout", "3000", "--backend", backend)
    with ThreadPoolExecutor() as threads, Served(tmp_path, *options) as served:
        held = threads.submit(served.get, "/hold")
        served.until(lambda: served.metric("loadgate_in_flight") == 1)
        served.signal(signal.SIGTERM)
        served.until(lambda: "draining" in served.log())
        served.signal(number)
        assert served.ended() == 128 + number
        held.exception(PATIENCE)
        assert "a second signal: ending at once; 1 running are dropped" in served.log()
        assert "Traceback" not in served.log()
        assert "never retrieved" not in served.log()


def test_sighup_brings_a_new_policy_into_force_and_keeps_the_old_one_when_it_is_wrong(
    tmp_path: Path,
) -> None:
    policy = policy_file(tmp_path, rate=2)
    with Served(tmp_path, "--policy", str(policy), "--priority", "/pay=critical") as served:
        statuses = [served.get("/work").status_code for _ in range(3)]
        assert statuses == [200, 200, 429]

        policy.write_text(POLICY.format(rate=-1))
        served.signal(signal.SIGHUP)
        success = "loadgate_policy_last_reload_success"
        served.until(lambda: served.metric(success) == 0)
        assert "the old policy stays in force" in served.log()
        assert "policy.toml:4: rates[0].rate" in served.log()
        assert served.get("/work").status_code == 429

        policy.write_text("[concurrency]\nalgorithm = 'fixed'\ninitial = 7\n")
        served.signal(signal.SIGHUP)
        served.until(lambda: served.metric(success) == 1)

        policy.write_text("priorities = ['default']\n")
        served.signal(signal.SIGHUP)
        served.until(lambda: served.metric(success) == 0)
        assert "--priority: 'critical' is none of the policy's classes: default" in served.log()
        assert served.metric("loadgate_limit") == 7
        assert served.get("/work").status_code == 200


def test_a_reload_refuses_what_the_start_refuses_and_says_what_changed(tmp_path: Path) -> None:
    policy = policy_file(tmp_path, rate=2)
    with Served(tmp_path, "--policy", str(policy)) as served:
        assert [served.get("/").status_code for _ in range(3)] == [200, 200, 429]

        policy.write_text("[[rates]]\nname = 'a'\nrate = '1/hour'\nkey = 'account'\n")
        served.signal(signal.SIGHUP)
        success = "loadgate_policy_last_reload_success"
        served.until(lambda: served.metric(success) == 0)
        (line,) = (line for line in served.log().splitlines() if "ERROR" in line)
        assert "the old policy stays in force" in line
        assert "a rate asks for the key 'account', which --identify must tell" in line
        assert served.get("/").status_code == 429

        # Keys that the start would have accepted are told after a reload as well.
        policy.write_text(
            "[[rates]]\nname = 'address'\nrate = '100/hour'\nkey = 'address'\n"
            "[[rates]]\nname = 'network'\nrate = '3/hour'\nkey = 'network'\n"
            "[queue]\nmax_wait = 0.2\n"
        )
        served.signal(signal.SIGHUP)
        served.until(lambda: served.metric(success) == 1)
        served.until(lambda: "rates: 1 -> 2; concurrency changed; queue changed" in served.log())
        assert [served.get("/").status_code for _ in range(4)] == [200, 200, 200, 429]
        assert served.metric("loadgate_rate_missing_total", rate="network") == 0


def test_an_app_that_brings_the_layer_too_is_warned_of_once(tmp_path: Path) -> None:
    app = APP + (
        "\nfrom loadgate import Policy\n"
        "from loadgate.integrations.asgi import AdmissionMiddleware\n"
        "app = AdmissionMiddleware(app, Policy())\n"
    )
    with Served(tmp_path, app=app) as served:
        assert served.get("/work").status_code == 200
        assert served.log().count("the app brings its own AdmissionMiddleware") == 1
        assert served.log().count("One client may hold every place") == 1


TRACED = """
import anyio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())
tracer = trace.get_tracer("app")

async def app(scope, receive, send):
    with tracer.start_as_current_span("work") as span:
        await anyio.sleep(1.01)  # a second is slow
        body = b"%032x" % span.get_span_context().trace_id
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})
"""


@pytest.mark.parametrize("backend", ["uvloop", "trio"])
def test_a_slow_request_of_an_app_that_traces_is_an_exemplar(tmp_path: Path, backend: str) -> None:
    with Served(tmp_path, "--backend", backend, app=living(TRACED)) as served:
        trace = served.get("/").text
        page = httpx.get(
            f"{served.ops}/metrics",
            headers={"accept": "application/openmetrics-text"},
            timeout=PATIENCE,
        )
    (line,) = (line for line in page.text.splitlines() if f'trace_id="{trace}"' in line)
    assert line.startswith("loadgate_latency_seconds_bucket")


def test_that_there_is_no_door_on_trio_is_said_once_unless_none_is_wanted(tmp_path: Path) -> None:
    for options, times in (
        (["--backend", "trio"], 1),
        (["--backend", "trio", "--door", "off"], 0),
        (["--backend", "asyncio"], 0),
    ):
        with Served(tmp_path, *options) as served:
            assert served.log().count("there is no door on trio") == times


def test_an_app_whose_startup_fails_ends_the_process_with_its_message(tmp_path: Path) -> None:
    app = """
async def app(scope, receive, send):
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no database"})
"""
    for backend in ("asyncio", "trio"):
        served = Served(tmp_path, "--backend", backend, app=app)
        with pytest.raises(AssertionError, match=r"did not start: .*no database"), served:
            pass
        assert served.process.returncode == 1
