"""``loadgate check`` says what a policy means, or what is wrong with it and where."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from loadgate.integrations.cli import main
from loadgate.integrations.cli.policyfile import PolicyFileError, read_policy
from loadgate.integrations.cli.words import describe, seconds, warnings, without_password
from loadgate.policy import Policy

FULL = """
[[rates]]
name = "per-client"
rate = "100/second burst 200"
key = "client"

[[rates]]
name = "failed-logins"
rate = "3/minute"
algorithm = "sliding-window-counter"
key = "account"
on_missing = "skip"
charge = "401 403"
match = { tier = ["free", "trial"] }
exempt = ["ops", "monitoring"]

[concurrency]
algorithm = "adaptive"
max = 500
latency_target = 0.25

[queue]
max_wait = 1.0
max_queue = 100
max_depth = 200
"""


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: Path) -> Any:
    monkeypatch.setattr(sys, "argv", ["loadgate", "check", str(file)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def test_a_valid_policy_is_said_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(FULL)
    code, out, err = run(capsys, monkeypatch, file)
    assert code == 0
    assert [line.partition(" (")[0].partition(",")[0] for line in err.splitlines()] == [
        "warning: a rate asks for the key 'account'",
        "warning: a rate asks for the key 'tier'",
    ]
    for sentence in (
        "a valid policy",
        "per-client: 100 per second, counted by the client",
        "token-bucket: up to 200 at once after a pause, then one every 10 ms.",
        "failed-logins: 3 per minute, counted by its 'account'",
        "sliding-window-counter: a sliding window, estimated from two counters.",
        "Charged when the request has ended as: 401 403.",
        "Only for clients with tier 'free' or 'trial'.",
        "Not for 'ops' and 'monitoring'.",
        "All of them must agree: a refused request is charged by none.",
        "adaptive: starts at 20, stays within 1 and 500",
        "It also aims at a latency of 250 ms.",
        "A request waits at most 1 s for a place, then it is refused.",
        "Up to 100 waiters everyone may wait.",
        "Above 100 a growing share of arrivals is refused at once, at 200 all of them.",
        "Arrivals are refused (503) while it is more than 100 ms late.",
        "429 when its own rate is used up",
        "Rate 'failed-logins' does not apply to requests without the key 'account'",
    ):
        assert sentence in out


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("[concurrency]\nmaxx = 3\n", ":2: concurrency.maxx", "did you mean 'max'?"),
        ("[concurrency]\n\nmin = 0\n", ":3: concurrency.min", "0"),
        ("[concurrency]\ninitial = 'many'\n", ":2: concurrency.initial", "'many'"),
        ("[queue]\nmax_queue = 9\nmax_depth = 3\n", ":3: queue.max_depth", "3 is below max_queue"),
        ("[queue]\nmax_wait = -1\n", ":2: queue.max_wait", "-1"),
        ("priorities = []\n", ":1: priorities", "at least one class is needed"),
        ("[[rates]]\nname = 'a'\nrate = '1/s'\n\n[[rates]]\nname = 'b'\nrate = 'often'\n",
         ":7: rates[1].rate", "'often' is not a rate"),
        ("[[rates]]\nname = 'a'\nlimit = 5\nburst = 0.5\n", ":4: rates[0].burst", "at least 1"),
        ("[[rates]]\nname = 'a'\nlimit = -5\n", ":3: rates[0].limit", "positive"),
        ("[[rates]]\nrate = '1/s'\n", ":1: rates[0]", "name"),
        ("quee = 3\n", ":1: quee", "did you mean 'queue'?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_file_line_path_and_value(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    where: str,
    what: str,
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    code, out, err = run(capsys, monkeypatch, file)
    assert (code, out) == (1, "")
    assert err.startswith(f"loadgate: {file}{where}")
    assert what in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("content", [b"[queue\n", b"\xff\xfe", b"max_wait = \n"])
def test_what_is_no_toml_is_said_so_once(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "policy.toml"
    file.write_bytes(content)
    with pytest.raises(PolicyFileError, match="is not TOML") as caught:
        read_policy(file)
    assert str(caught.value).count("policy.toml") == 1


def test_a_file_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match="cannot be read: is a directory"):
        read_policy(tmp_path)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("", "There are no rates"),
        ("[[rates]]\nname='a'\nrate='1/s'\nmode='observe'\n", "Rate 'a' only observes"),
        ("[[rates]]\nname='a'\nrate='1/s'\nmode='off'\n", "Rate 'a' is off."),
        ("[[rates]]\nname='a'\nrate='1/s'\nmode='off'\n", "No rate is enforced"),
        ("[concurrency]\nmode='observe'\n", "The limit only observes"),
        ("[concurrency]\nmode='off'\n", "The limit is off"),
        ("", "One client may hold every place"),
    ],
)
def test_whatever_disables_protection_is_said(tmp_path: Path, text: str, warning: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    policy = read_policy(file)
    assert any(said.startswith(warning) for said in warnings(policy))
    assert f"  ! {warning}" in describe(policy)


def test_an_unwatched_loop_is_warned_of() -> None:
    from loadgate.policy import Signals

    assert any("not watched" in said for said in warnings(Policy(signals=Signals(max_lag=None))))


def test_a_policy_with_nothing_switched_off_has_no_warnings() -> None:
    rates = [{"name": "a", "rate": "1/s"}]
    policy = Policy.from_mapping({"rates": rates, "concurrency": {"max_share": 0.25}})
    assert warnings(policy) == []
    assert describe(policy).endswith("Everything is enforced.\n")


@pytest.mark.parametrize(
    ("value", "words"), [(0.0000125, "12.5 µs"), (0.25, "250 ms"), (1.5, "1.5 s"), (3600, "3600 s")]
)
def test_seconds_are_said_as_people_do(value: float, words: str) -> None:
    assert seconds(value) == words


STORE = """
[[rates]]
name = "orders"
rate = "5/second"
shared = true

[store]
url = "env:STORE_URL"
secret = "env:STORE_SECRET"
on_failure = "closed"
overrides = { orders = "open" }
budget = 0.02
"""


def test_a_store_is_said_in_words_and_what_it_lacks_in_the_environment_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(STORE)
    monkeypatch.delenv("STORE_URL", raising=False)
    monkeypatch.setenv("STORE_SECRET", "0123456789abcdef")
    code, out, err = run(capsys, monkeypatch, file)
    assert code == 0
    for sentence in (
        "url: env:STORE_URL; its secret stands in the variable STORE_SECRET.",
        "mode strict: the store is asked for each request.",
        "budget: a decision takes at most 20 ms.",
        "on_failure closed: while it does not answer, requests are refused (503).",
        "For rate 'orders' open: everybody passes.",
    ):
        assert sentence in out
    assert err == (
        "note: store names the variable STORE_URL, which is not set here; loadgate serve needs it\n"
    )
    monkeypatch.setenv("STORE_URL", "redis://cache")
    assert run(capsys, monkeypatch, file)[2] == ""


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("url = 'redis://cache:99999'", "7: store.url: 'cache:99999' is not host:port"),
        ("url = 'rdis://cache'", "7: store.url: scheme 'rdis' is unknown; write redis://"),
        ("url = 'redis://:hunter2@a,b'", "7: store.url: several hosts need redis+cluster://"),
        ("url = 'redis://u:hunter2@a?tls=1'", "7: store.url: option 'tls' is unknown"),
        ("url = 'env:STORE_URL'", "7: store.url: env:STORE_URL: the database must be a number"),
        ("secret = 'env:STORE_SECRET'", "8: store.secret: env:STORE_SECRET: must have at least"),
    ],
)
def test_a_store_that_cannot_be_one_is_named_with_its_line(
    setting: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STORE_URL", "redis://:hunter2@cache/zero")
    monkeypatch.setenv("STORE_SECRET", "hunter2")
    file = tmp_path / "policy.toml"
    lines = ["url = 'redis://cache'", "secret = '0123456789abcdef'"]
    lines[setting.startswith("secret")] = setting
    text = "\n[[rates]]\nname = 'a'\nrate = '1/s'\nshared = true\n[store]\n" + "\n".join(lines)
    file.write_text(text)
    code, out, err = run(capsys, monkeypatch, file)
    assert (code, out) == (1, "")
    assert err.startswith(f"loadgate: {file}:{said}")
    assert len(err.splitlines()) == 1
    assert "hunter2" not in err


def test_that_a_store_could_not_be_looked_at_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "coredis", None)
    file = tmp_path / "policy.toml"
    file.write_text("[store]\nurl = 'redis://a'\nsecret = '0123456789abcdef'\n")
    code, _, err = run(capsys, monkeypatch, file)
    assert code == 0
    assert err.startswith("note: what shared rates need is not installed here")
    assert "pip install 'loadgate[redis]'" in err


def test_a_store_that_nothing_uses_is_said_so(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("[store]\nurl = 'redis://u:hunter2@a:1/0'\nsecret = '0123456789abcdef'\n")
    said = describe(read_policy(file))
    assert "url: redis://…@a:1/0; its secret stands in the file." in said
    assert "No rate is shared: nothing is counted there." in said
    assert "hunter2" not in said
    assert "0123456789abcdef" not in said


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://cache:6379/0", "redis://cache:6379/0"),
        ("redis://:hunter2@cache", "redis://…@cache"),
        ("redis+cluster://u:hun@ter2@a:1,b:2", "redis+cluster://…@a:1,b:2"),
        ("redis://:hun/ter?2@cache", "redis://…"),
        ("redis://cache?password=hunter2", "redis://cache"),
        ("redis://cache?password=hunter@2", "redis://…"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("hunter2", "…"),
    ],
)
def test_no_password_of_a_store_is_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_key_that_nobody_tells_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("[[rates]]\nname='a'\nrate='1/s'\nkey='clinet'\n")
    code, _, err = run(capsys, monkeypatch, file)
    assert code == 0
    assert err.startswith("warning: a rate asks for the key 'clinet' (did you mean 'client'?)")
    assert "serve refuses to start without --identify" in err
    file.write_text("[[rates]]\nname='a'\nrate='1/s'\nkey='client'\n")
    assert run(capsys, monkeypatch, file)[2] == ""
