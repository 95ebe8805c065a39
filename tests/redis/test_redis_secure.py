"""TLS, certificates, sockets, permissions, and passwords that appear nowhere; on real servers."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import tempfile
import traceback
from collections.abc import Generator
from pathlib import Path

import pytest

from loadgate import AdmissionController, Rate
from loadgate.errors import PolicyError
from loadgate.integrations.redis.tls import Tls
from loadgate.integrations.redis.url import parse
from tests.programs import free_port
from tests.redis.servers import Server, cluster
from tests.redis.shared_policy import shared

pytestmark = pytest.mark.anyio

WITH_TLS = "redis-7.0"  # Debian's is built with TLS, the wheels are not

# The permissions that docs/redis.md names.
RULES = (
    "-@all +evalsha +script|load +time +get +mget +set +zadd +zrem +zcard +zrange +zrangebyscore "
    "+zremrangebyscore +pexpire"
)
RULES_OF_LOCAL_MODE = "+hgetall +hset +hdel"
RULES_OF_CLUSTERS = "+cluster|slots +asking"


def make_certificate(folder: Path, name: str) -> None:
    """A certificate for this machine that signs itself, made with the openssl command."""
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    where = f"-keyout {folder}/{name}.key -out {folder}/{name}.pem"
    names = f"-subj /CN={name} -addext subjectAltName=IP:127.0.0.1,DNS:localhost"
    command = ["openssl", *f"{words} {where} {names}".split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def folder() -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="loadgate-tls-") as name:
        made = Path(name)
        for who in ("server", "client", "stranger"):
            make_certificate(made, who)
        both = (made / "server.pem").read_text() + (made / "client.pem").read_text()
        (made / "both.pem").write_text(both)
        yield made


def tls_options(folder: Path, port: int) -> list[str]:
    return [
        "--tls-port", str(port), "--tls-cert-file", f"{folder}/server.pem",
        "--tls-key-file", f"{folder}/server.key", "--tls-ca-cert-file", f"{folder}/both.pem",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def secure(folder: Path) -> Generator[int]:
    """The TLS port of a server that wants a client's certificate and a password."""
    port = free_port()
    options = [*tls_options(folder, port), "--tls-auth-clients", "yes"]
    with Server(WITH_TLS, *options, "--requirepass", "hunter2", "--unixsocket", f"{folder}/socket"):
        yield port


def client(folder: Path, trusted: str = "server") -> str:
    shown = f"certfile={folder}/client.pem&keyfile={folder}/client.key"
    return f"ca_certs={folder}/{trusted}.pem&{shown}"


async def source(controller: AdmissionController) -> str:
    async with controller.admit(client="a") as permit:
        assert permit.charge is not None
        return permit.charge.source


async def test_tls_with_certificates_on_both_sides(folder: Path, secure: int) -> None:
    url = f"rediss://:hunter2@127.0.0.1:{secure}?{client(folder)}"
    async with AdmissionController(shared(url, "3/hour")) as controller:
        assert await source(controller) == "store"


async def test_a_server_that_nobody_vouches_for_is_an_error_at_the_start(
    folder: Path, secure: int
) -> None:
    url = f"rediss://:hunter2@127.0.0.1:{secure}?{client(folder, 'stranger')}"
    with pytest.raises(PolicyError, match=r"store\.url.*CERTIFICATE_VERIFY_FAILED"):
        async with AdmissionController(shared(url, "3/hour")):
            pass
    unverified = f"{url.partition('?')[0]}?verify=no&{client(folder).partition('&')[2]}"
    async with AdmissionController(shared(unverified, "3/hour")) as controller:
        assert await source(controller) == "store"


async def test_without_its_certificate_a_client_is_never_let_in(folder: Path, secure: int) -> None:
    url = f"rediss://:hunter2@127.0.0.1:{secure}?ca_certs={folder}/server.pem"
    controller = AdmissionController(shared(url, "3/hour"))
    # Either the server says why, or it only hangs up.
    with contextlib.suppress(PolicyError):
        async with controller:
            assert await source(controller) == "emergency"
    store = controller.snapshot().store
    assert store is not None
    assert store.decisions["store"] == 0
    assert store.incidents == 1


@pytest.mark.parametrize(
    "options",
    ["ca_certs=/nowhere", "certfile=/nowhere", "ca_certs={0}/server.key", "certfile={0}/both.pem"],
)
def test_certificates_that_cannot_be_used_are_an_error(folder: Path, options: str) -> None:
    url = f"rediss://h?{options.format(folder)}"
    with pytest.raises(PolicyError, match=r"store\.url: ca_certs, certfile or keyfile cannot"):
        AdmissionController(shared(url, "3/hour"))


def test_changed_certificates_are_read_at_the_next_connection(tmp_path: Path) -> None:
    make_certificate(tmp_path, "one")
    tls = Tls(parse(f"rediss://h?ca_certs={tmp_path}/one.pem"))
    before = tls.context()
    assert tls.context() is before
    make_certificate(tmp_path, "two")
    (tmp_path / "two.pem").replace(tmp_path / "one.pem")
    assert tls.context() is not before
    assert tls.context().get_ca_certs() != before.get_ca_certs()
    folder = Tls(parse(f"rediss://h?ca_certs={tmp_path}"))
    assert folder.context().get_ca_certs() == []  # a folder is looked into when it is needed


async def test_a_sentinel_and_its_primary_over_tls(folder: Path) -> None:
    primary, sentinel = free_port(), free_port()
    options = [*tls_options(folder, primary), "--tls-auth-clients", "no"]
    watch = f"sentinel monitor main 127.0.0.1 {primary} 1\ntls-replication yes\n"
    more = [*tls_options(folder, sentinel), "--tls-auth-clients", "no"]
    with Server(WITH_TLS, *options), Server(WITH_TLS, *more, sentinel=watch):
        url = f"rediss+sentinel://127.0.0.1:{sentinel}/main?ca_certs={folder}/server.pem"
        async with AdmissionController(shared(url, "3/hour")) as controller:
            assert await source(controller) == "store"


@pytest.fixture(scope="module")
def secure_cluster(folder: Path) -> Generator[str]:
    """Where a cluster is whose nodes speak TLS, to each other too, and want certificates."""
    ports: list[int] = []

    def secured(port: int) -> list[str]:
        ports.append(port)
        return [*tls_options(folder, port), "--tls-auth-clients", "yes"]

    with cluster(WITH_TLS, secured):
        yield ",".join(f"127.0.0.1:{port}" for port in ports)


@pytest.mark.parametrize("mode", ["strict", "local"])
async def test_a_cluster_over_tls(folder: Path, secure_cluster: str, mode: str) -> None:
    url = f"rediss+cluster://{secure_cluster}?{client(folder)}"
    async with AdmissionController(shared(url, *every_algorithm(), mode=mode)) as controller:
        await ask_everything(controller)  # of 20 clients: every node is asked


async def test_a_cluster_that_nobody_vouches_for_is_an_error_at_the_start(
    folder: Path, secure_cluster: str
) -> None:
    url = f"rediss+cluster://{secure_cluster}?{client(folder, 'stranger')}"
    with pytest.raises(PolicyError, match=r"store\.url.*CERTIFICATE_VERIFY_FAILED"):
        async with AdmissionController(shared(url, "3/hour")):
            pass


@pytest.fixture(scope="module")
def guarded() -> Generator[str]:
    """Where sentinels are that want a password of their own."""
    with Server("valkey-9.1", "--requirepass", "hunter2") as primary:
        watch = (
            f"sentinel monitor main 127.0.0.1 {primary.port} 1\n"
            "sentinel auth-pass main hunter2\n"
            "requirepass sesame\n"
            "user gate on >simsim%1 +sentinel|get-master-addr-by-name\n"
        )
        with Server("valkey-9.1", sentinel=watch) as sentinel:
            yield f"redis+sentinel://:hunter2@127.0.0.1:{sentinel.port}/main"


@pytest.mark.parametrize(
    "words",
    ["sentinel_password=sesame", "sentinel_username=gate&sentinel_password=simsim%251"],
)
async def test_sentinels_get_a_password_of_their_own(guarded: str, words: str) -> None:
    async with AdmissionController(shared(f"{guarded}?{words}", "3/hour")) as controller:
        assert await source(controller) == "store"


@pytest.mark.parametrize(
    ("words", "code"),
    [("", "NOAUTH"), ("?sentinel_password=0pen", "WRONGPASS"),
     ("?sentinel_username=gate&sentinel_password=0pen", "WRONGPASS")],
)  # fmt: skip
async def test_a_wrong_password_of_sentinels_is_an_error_that_does_not_show_it(
    guarded: str, words: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("coredis").setLevel(logging.DEBUG)
    controller = AdmissionController(shared(f"{guarded}{words}", "3/hour"))
    with pytest.raises(PolicyError, match=rf"store\.url: .*{code}: a sentinel says") as caught:
        async with controller:
            pass
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    shown += f"{controller.snapshot()!r} {controller.shared!r} {controller.policy!r}"
    for password in ("0pen", "hunter2"):
        assert password not in shown


async def test_a_unix_socket(folder: Path, secure: int) -> None:
    del secure  # it listens on the socket too
    url = f"unix://:hunter2@{folder}/socket?db=3"
    async with AdmissionController(shared(url, "3/hour")) as controller:
        assert await source(controller) == "store"
    with pytest.raises(PolicyError, match="WRONGPASS"):
        async with AdmissionController(shared(f"unix://:no@{folder}/socket", "3/hour")):
            pass


@pytest.mark.parametrize("mode", ["strict", "local"])
async def test_the_documented_permissions_are_enough(mode: str) -> None:
    with Server() as server:
        policy = shared(
            f"redis://gate:hunter2@127.0.0.1:{server.port}", *every_algorithm(), mode=mode
        )
        allow(server, policy.store.prefix if policy.store else "", mode)
        async with AdmissionController(policy) as controller:
            await ask_everything(controller)


@pytest.fixture(scope="module")
def nodes() -> Generator[list[Server]]:
    with cluster() as started:
        yield started


@pytest.mark.parametrize("mode", ["strict", "local"])
async def test_the_documented_permissions_are_enough_in_a_cluster(
    nodes: list[Server], mode: str
) -> None:
    places = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    policy = shared(f"redis+cluster://gate:hunter2@{places}", *every_algorithm(), mode=mode)
    for node in nodes:
        allow(node, policy.store.prefix if policy.store else "", mode, RULES_OF_CLUSTERS)
    async with AdmissionController(policy) as controller:
        await ask_everything(controller)


def every_algorithm() -> list[Rate]:
    return [
        Rate("bucket", "100/hour", shared=True),
        *(
            Rate(name, "100/hour", algorithm=name, shared=True)
            for name in ("fixed-window", "sliding-window-counter", "sliding-window-log")
        ),
    ]


def allow(server: Server, prefix: str, mode: str, more: str = "") -> None:
    rules = f"resetkeys resetchannels ~{prefix}:v1:* {RULES} {more}"
    if mode == "local":
        rules += f" {RULES_OF_LOCAL_MODE}"
    with server.wire() as wire:
        wire("ACL", "SETUSER", "gate", "on", ">hunter2", *rules.split())


async def ask_everything(controller: AdmissionController) -> None:
    for number in range(20):
        async with controller.admit(client=f"client {number}") as permit:
            assert permit.charge is not None
            assert permit.charge.source == "store"
            assert len(permit.quotas) == 4
            assert controller.shared is not None
            if number % 2:
                controller.shared.refund(permit.charge)
    store = controller.snapshot().store
    assert store.troubles == dict.fromkeys(store.troubles, 0)
    assert store.incidents == 0


@pytest.mark.parametrize("user", ["", "gate"])
async def test_a_password_appears_in_no_error_log_or_snapshot(
    user: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("coredis").setLevel(logging.DEBUG)
    with Server("redis-7.0", "--requirepass", "right") as server:
        url = f"redis://{user}:hunter2%21@127.0.0.1:{server.port}"
        controller = AdmissionController(shared(url, "3/hour"))
        with pytest.raises(PolicyError) as caught:
            async with controller:
                pass
        shown = [
            "".join(traceback.format_exception(caught.value)),
            caplog.text,
            f"{controller.snapshot()!r} {controller.shared!r} {controller.policy!r}",
        ]
    for text in shown:
        assert "hunter2" not in text
