"""What the command line says, and with which exit code."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware

from loadgate import Policy, __version__
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.integrations.cli import main
from loadgate.integrations.cli.bind import BindError, bind, overlap, url
from loadgate.integrations.cli.load import brings_admission
from loadgate.integrations.cli.say import fail_for_missing

_numbers = count()


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module nobody has imported yet, in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = f"cli_case_{next(_numbers)}"
    yield module
    sys.modules.pop(module, None)


class Said:
    def __init__(self, code: Any, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def message(self) -> str:
        """The last line on stderr: what a hurried reader sees."""
        return self.err.strip().splitlines()[-1]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["loadgate", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Said(ended.value.code, said.out, said.err)

    return run


# -- the user's app ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (None, "{name}:app", "there is no module '{name}' in "),
        ("", "{name}.sub:app", "there is no module '{name}.sub' in "),
        ("import not_installed", "{name}:app", "'{name}' does not import: it needs 'not_install"),
        ("1 / 0", "{name}:app", "'{name}' does not import: ZeroDivisionError: division by zero"),
        ("def (", "{name}:app", "'{name}' does not import: SyntaxError: "),
        ("raise SystemExit(0)", "{name}:app", "'{name}' ends the process when it is imported"),
        ("ap = 1", "{name}:app", "module '{name}' has no 'app'; did you mean 'ap'?"),
        ("", "{name}:app.inner", "module '{name}' has no 'app.inner'"),
        ("app = 3", "{name}:app", "'{name}:app' is no ASGI app: it is a int, not callable"),
        ("class App: ...", "{name}:App", "'{name}:App' is the class 'App', not an ASGI app: "),
        ("def app(environ, start): ...", "{name}:app", "it takes two arguments as WSGI apps do"),
        ("def app(): ...", "{name}:app", "if it makes the app, add --factory"),
        ("def app(scope): ...", "{name}:app", "it does not take (scope, receive, send)"),
        ("", "{name}", "'{name}' is incomplete: write MODULE:NAME, for example main:app"),
        ("", "{name}.py:app", "'{name}.py' is a file: write the module, {name}:app"),
    ],
)
def test_an_app_that_cannot_be_served_is_named_in_one_line(
    name: str, run: Any, source: str | None, target: str, message: str
) -> None:
    if source is not None:
        Path(f"{name}.py").write_text(source)
    said = run("serve", target.format(name=name), "--bind", "127.0.0.1:0")
    assert said.code == 2
    assert said.message.startswith("loadgate: ")
    assert message.format(name=name) in said.message


def test_the_traceback_is_the_users_own_and_nothing_of_ours(name: str, run: Any) -> None:
    Path(f"{name}.py").write_text("def helper():\n    return {}['missing']\n\nhelper()\n")
    said = run("serve", f"{name}:app")
    assert f'{name}.py", line 4, in <module>' in said.err
    assert f'{name}.py", line 2, in helper' in said.err
    assert "importlib" not in said.err
    assert "loadgate/" not in said.err
    assert said.message == f"loadgate: {name!r} does not import: KeyError: 'missing'"


def test_a_missing_module_of_ours_to_find_shows_no_traceback(name: str, run: Any) -> None:
    assert len(run("serve", f"{name}:app").err.splitlines()) == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("make = 3", "is a int, so it cannot be a --factory"),
        ("def make(): raise KeyError('database')", "failed: KeyError: 'database'"),
        ("def make(): return None", "returned is no ASGI app: it is a NoneType"),
        ("async def make(): ...", "is async; it must return the app itself"),
    ],
)
def test_a_factory_that_makes_no_app_is_named(
    name: str, run: Any, source: str, message: str
) -> None:
    Path(f"{name}.py").write_text(source)
    said = run("serve", f"{name}:make", "--factory")
    assert said.code == 2
    assert message in said.message


def test_a_layer_in_the_app_is_found_wherever_it_is_put() -> None:
    class Around:
        def __init__(self, app: Any) -> None:
            self.app = app

    layer: Any = AdmissionMiddleware
    plain = Starlette()
    api = FastAPI()
    api.add_middleware(layer, controller=Policy())
    for app, brings in (
        (plain, False),
        (Around(plain), False),
        (AdmissionMiddleware(plain, Policy()), True),
        (Around(AdmissionMiddleware(plain, Policy())), True),
        (Starlette(middleware=[Middleware(layer, controller=Policy())]), True),
        (Around(api), True),
    ):
        assert brings_admission(app) is brings
    circle = Around(None)
    circle.app = circle
    assert not brings_admission(circle)


# -- addresses and options ---------------------------------------------------------------------

APP = "async def app(scope, receive, send): ...\n"


def test_a_port_that_is_taken_is_named(name: str, run: Any) -> None:
    Path(f"{name}.py").write_text(APP)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for options in (("--bind", address), ("--bind", "127.0.0.1:0", "--metrics-bind", address)):
            said = run("serve", f"{name}:app", *options)
            assert said.code == 2
            assert said.message == f"loadgate: cannot listen on {address}: the port is taken"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # what a user writes
@pytest.mark.parametrize("workers", ["1", "2"])
def test_one_address_for_two_ports_is_named(name: str, run: Any, host: str, workers: str) -> None:
    Path(f"{name}.py").write_text(APP)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first, second = f"{host}:{port}", f"127.0.0.1:{port}" if workers == "1" else f"{host}:{port}"
    said = run(
        "serve", f"{name}:app", "--bind", first, "--metrics-bind", second, "--workers", workers
    )
    assert said.code == 2
    assert said.err == (
        f"loadgate: --bind {first} and --metrics-bind {second} are the same address: give the "
        "operators another port, or 'none'\n"
    )


def test_one_unix_socket_for_two_ports_is_named(tmp_path: Path) -> None:
    with bind(f"unix:{tmp_path}/one") as first, bind(f"unix:{tmp_path}/two") as second:
        assert overlap(first, first)
        assert not overlap(first, second)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("8000", "'8000' is no address: write HOST:PORT"),
        ("127.0.0.1:", "is no address"),
        ("127.0.0.1:http", "is no address"),
        ("127.0.0.1:65536", "is no address"),
        ("::1:8000", "write an IPv6 address as [::1]:8000"),
        ("no-such-host.invalid:1", "there is no host 'no-such-host.invalid'"),
        ("unix:/no/such/directory/socket", "no such file or directory"),
    ],
)
def test_an_address_that_means_nothing_is_named(address: str, message: str) -> None:
    with pytest.raises(BindError) as caught:
        bind(address)
    assert message in str(caught.value)


def test_addresses_of_every_kind_can_be_bound(tmp_path: Path) -> None:
    for spec, start in (
        ("127.0.0.1:0", "http://127.0.0.1:"),
        (":0", "http://"),
        ("localhost:0", "http://"),
        (f"unix:{tmp_path}/socket", f"unix:{tmp_path}/socket"),
        (f"unix:{tmp_path}/socket", f"unix:{tmp_path}/socket"),  # left behind by the first
    ):
        with bind(spec) as listener:
            assert url(listener).startswith(start)


def test_a_unix_socket_that_still_answers_is_not_taken_over(tmp_path: Path) -> None:
    with bind(f"unix:{tmp_path}/socket") as first:
        first.listen()
        with pytest.raises(BindError, match="the port is taken"):
            bind(f"unix:{tmp_path}/socket")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--backend", "twisted"), "'twisted' is not one of"),
        (("--graceful-timeout", "-1"), "greater than or equal to 0"),
        (("--trusted-proxy", "nonsense"), "loadgate: --trusted-proxy: 'nonsense' does not appear"),
        (("--backend", "trio", "--door", "drop"), "--door drop means nothing with --backend trio"),
        (("--exempt", "health"), "loadgate: --exempt: 'health' is neither"),
        (("--priority", "/pay"), "loadgate: --priority: '/pay' is not of the form"),
        (("--priority", "/pay=vital"), "is none of the policy's classes: critical, default"),
        (("--identify", "no_such_module_here:who"), "there is no module 'no_such_module_here'"),
        (("--app-dir", "nowhere"), "'nowhere' is not a directory"),
        (("--policy", "nowhere.toml"), "nowhere.toml: cannot be read: no such file"),
    ],
)
def test_an_option_that_means_nothing_is_named(
    name: str, run: Any, options: tuple[str, ...], message: str
) -> None:
    Path(f"{name}.py").write_text(APP)
    said = run("serve", f"{name}:app", "--bind", "127.0.0.1:0", "--metrics-bind", "none", *options)
    assert said.code == 2
    assert message in " ".join(said.err.split())


def test_serve_says_where_a_policy_is_wrong(name: str, run: Any) -> None:
    Path(f"{name}.py").write_text(APP)
    Path("policy.toml").write_text("[concurrency]\nmin = 9\nmax = 3\n")
    said = run("serve", f"{name}:app", "--policy", "policy.toml", "--bind", "127.0.0.1:0")
    assert said.code == 2
    assert said.message == "loadgate: policy.toml:2: concurrency.min: 9 is above max 3"


def test_a_rate_on_a_key_that_nobody_tells_is_named(name: str, run: Any) -> None:
    Path(f"{name}.py").write_text(APP + "def who(scope): return {'account': '42'}\n")
    Path("policy.toml").write_text("[[rates]]\nname='a'\nrate='1/s'\nkey='account'\n")
    said = run("serve", f"{name}:app", "--policy", "policy.toml", "--bind", "127.0.0.1:0")
    assert said.code == 2
    assert "asks for the key 'account', which --identify must tell" in said.message


@pytest.mark.parametrize("policy", ["[[rates]]\nname='a'\nrate='1/s'\n", "[queue]\nmax_wait = 3\n"])
def test_a_policy_is_not_taken_for_a_scenario(name: str, run: Any, policy: str) -> None:
    Path("policy.toml").write_text(policy)
    said = run("simulate", "policy.toml")
    assert said.code == 2
    assert said.message.startswith(
        "loadgate: policy.toml: this is a policy, not a scenario; write loadgate simulate "
        "SCENARIO --policy policy.toml"
    )


def test_the_scenarios_that_come_along_are_listed_when_one_is_not_found(
    name: str, run: Any
) -> None:
    said = run("simulate", "nosuch")
    assert said.code == 2
    assert "busy-day, overload, retry-storm, slow-database" in said.message
    assert len(said.err.splitlines()) == 1


# -- the rest ----------------------------------------------------------------------------------


def test_version_and_help(run: Any) -> None:
    said = run("--version")
    assert (said.code, said.out) == (0, f"loadgate {__version__}\n")
    for command in ("serve", "check", "demo", "simulate"):
        assert command in run("--help").out
    assert "--graceful-timeout" in run("serve", "--help").out


def test_without_its_extras_the_command_line_says_what_to_install(tmp_path: Path) -> None:
    shared = tmp_path / "shared.toml"
    shared.write_text(
        "[store]\nurl = 'redis://127.0.0.1:1'\nsecret = 'a secret of 32 characters or so'\n"
        "[[rates]]\nname = 'a'\nrate = '1/s'\nshared = true\n"
        "[concurrency]\nmax_share = 0.5\n"  # without it there is a warning first
    )
    program = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "{missing}":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
sys.argv = {argv!r}
from loadgate.integrations.cli import main
main()
"""
    root = Path(__file__).parents[2] / "controller"
    for missing, argv, extra in (
        ("typer", ["loadgate", "check"], "serve"),
        ("hypercorn", ["loadgate", "serve", "served:app", "--bind", "127.0.0.1:0"], "serve"),
        (
            "coredis",
            [
                "loadgate",
                "serve",
                "served:app",
                "--bind",
                "127.0.0.1:0",
                "--metrics-bind",
                "none",
                "--policy",
                str(shared),
            ],
            "redis",
        ),
    ):
        source = program.format(missing=missing, argv=argv)
        ended = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(root)!r}, '.']\n{source}"],
            capture_output=True, text=True, timeout=60, check=False, cwd=_app_directory(),
        )  # fmt: skip
        assert ended.returncode == 2, ended.stderr
        assert f"needs {missing}, which is not installed" in ended.stderr
        assert f"pip install 'loadgate[{extra}]'" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("prometheus", "prometheus_client", "prometheus"),
        ("httpx", "httpx", "httpx"),
        ("redis", "coredis", "redis"),
        ("opentelemetry", "opentelemetry", "otel"),
        ("opentelemetry", "prometheus_client", "otel"),
    ],
)
def test_an_integration_without_its_extra_says_what_to_install(
    module: str, missing: str, extra: str
) -> None:
    program = f"""
import sys
sys.modules[{missing!r}] = None
try:
    import loadgate.integrations.{module}
except ModuleNotFoundError as error:
    print(error.name.partition(".")[0], error, sep="|")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2] / "controller",
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ended.stdout == (
        f"{missing}|loadgate.integrations.{module} needs {missing}, which is not installed; "
        f"run: pip install 'loadgate[{extra}]'\n"
    )


def test_the_package_runs_as_a_module() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "loadgate", "--version"],
        cwd=Path(__file__).parents[2] / "controller",
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ended.stdout == f"loadgate {__version__}\n"


def test_a_missing_module_is_named_with_its_extra(capsys: pytest.CaptureFixture[str]) -> None:
    missing = ModuleNotFoundError("No module named 'numpy.random'", name="numpy.random")
    with pytest.raises(SystemExit) as ended:
        fail_for_missing(missing, "loadgate simulate")
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "loadgate: loadgate simulate needs numpy, which is not installed; "
        "run: pip install 'loadgate[simulate]'\n"
    )
    with pytest.raises(ModuleNotFoundError, match="ours"):
        fail_for_missing(ModuleNotFoundError("ours", name="loadgate.gone"), "loadgate simulate")


def _app_directory() -> Path:
    return Path(__file__).parent / "apps"


def test_a_secret_that_could_be_guessed_is_one_line(
    name: str, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADGATE_CLIENT_SECRET", "short")
    (tmp_path / f"{name}.py").write_text("async def app(scope, receive, send): ...")
    said = run("serve", f"{name}:app", "--bind", "127.0.0.1:0", "--metrics-bind", "none")
    assert said.code == 2
    assert said.err == "loadgate: --client-secret: 5 bytes, at least 16 are needed\n"
