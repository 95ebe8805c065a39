from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgate import Concurrency, Policy, PolicyError, Queue, Rate, Signals


def test_the_default_policy_has_no_rates_and_needs_no_setting() -> None:
    policy = Policy()
    assert policy.rates == ()
    assert policy.concurrency.algorithm == "adaptive"
    assert policy.queue.max_wait == 0.1


def test_a_file_says_what_python_says(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("""
        priorities = ["high", "low"]
        [[rates]]
        name = "per-client"
        rate = "100/second burst 200"
        key = "client"
        [concurrency]
        algorithm = "aimd"
        initial = 10
        max = 50
        [queue]
        max_wait = 0.2
        [signals]
        max_lag = 0.3
    """)
    assert Policy.from_toml(file) == Policy(
        rates=[Rate("per-client", "100/second burst 200")],
        concurrency=Concurrency("aimd", initial=10, max=50),
        queue=Queue(max_wait=0.2),
        priorities=("high", "low"),
        signals=Signals(max_lag=0.3),
    )


def test_the_limit_starts_at_twenty_or_at_the_nearest_bound() -> None:
    assert Concurrency().create().limit == 20
    assert Concurrency("fixed", min=50).create().limit == 50
    assert Concurrency("fixed", max=5).create().limit == 5


@pytest.mark.parametrize(
    ("mapping", "path", "says"),
    [
        ({"qeue": {}}, "qeue", "did you mean 'queue'"),
        ({"queue": {"max_wiat": 1}}, "queue.max_wiat", "did you mean 'max_wait'"),
        ({"queue": {"max_wait": -1}}, "queue.max_wait", "-1"),
        ({"queue": {"max_wait": "soon"}}, "queue.max_wait", "'soon'"),
        ({"queue": {"max_wait": float("nan")}}, "queue.max_wait", "nan"),
        (
            {"queue": {"max_queue": 10, "max_depth": 5}},
            "queue.max_depth",
            "5 is below max_queue 10",
        ),
        ({"queue": {"discipline": "lottery"}}, "queue.discipline", "'lottery'"),
        ({"queue": {"rule": "whim"}}, "queue.rule", "'whim'"),
        ({"queue": {"mode": "maybe"}}, "queue.mode", "'maybe'"),
        ({"queue": {"max_refused": 1.5}}, "queue.max_refused", "1.5"),
        ({"queue": {"max_refused": 0}}, "queue.max_refused", "observe"),
        ({"queue": {"fair_slots": 1000}}, "queue.fair_slots", "1000 is not a power of two"),
        ({"queue": {"fair_hand": 7}}, "queue.fair_hand", "7"),
        ({"concurrency": {"max_share": 0}}, "concurrency.max_share", "0"),
        ({"concurrency": {"max_share": 2}}, "concurrency.max_share", "2"),
        ({"signals": {"mode": "maybe"}}, "signals.mode", "'maybe'"),
        ({"signals": {"max_memory": 512}}, "signals.max_memory", "512"),
        ({"signals": {"max_memory": "all"}}, "signals.max_memory", "all"),
        ({"signals": {"gauge_target": 1.0}}, "signals.gauge_target", "1.0"),
        ({"reserve": {"vip": 0.1}}, "reserve.vip", "none of critical"),
        ({"reserve": {"default": 1.0}}, "reserve.default", "1.0"),
        ({"reserve": {"default": 0.6, "critical": 0.6}}, "reserve", "1.2"),
        ({"enabled": "perhaps"}, "enabled", "perhaps"),
        ({"concurrency": {"min": 10, "max": 5}}, "concurrency.min", "10 is above max 5"),
        ({"concurrency": {"min": 0}}, "concurrency.min", "0"),
        ({"concurrency": {"initial": 9, "max": 5}}, "concurrency.initial", "9"),
        ({"concurrency": {"algorithm": "adaptve"}}, "concurrency.algorithm", "adaptive"),
        ({"concurrency": {"mode": "maybe"}}, "concurrency.mode", "maybe"),
        ({"concurrency": {"options": {"zeal": 1}}}, "concurrency.options.zeal", "zeal"),
        ({"concurrency": {"latency_target": -1}}, "concurrency.latency_target", "-1"),
        ({"rates": [{"name": "a", "rate": "-5/second"}]}, "rates[0].rate", "-5"),
        ({"rates": [{"name": "a", "limit": -5}]}, "rates[0].limit", "-5"),
        ({"rates": [{"name": "a", "limit": 5, "burst": 0.5}]}, "rates[0].burst", "0.5"),
        ({"rates": [{"name": "a", "limit": 5, "brst": 9}]}, "rates[0].brst", "burst"),
        ({"rates": [{"limit": 5}]}, "rates[0]", "name"),
        (
            {"rates": [{"name": "a", "limit": 5}, {"name": "a", "limit": 5}]},
            "rates[1].name",
            "'a' is used twice",
        ),
        ({"rates": {"name": "a"}}, "rates", "array"),
        ({"priorities": []}, "priorities", "at least one"),
        ({"priorities": ["a", "a"]}, "priorities", "twice"),
        ({"priorities": [""]}, "priorities[0]", "''"),
        ({"signals": {"max_lag": 0}}, "signals.max_lag", "0"),
    ],
)
def test_what_is_wrong_is_said_with_path_value_and_bound(
    mapping: dict[str, Any], path: str, says: str
) -> None:
    with pytest.raises(PolicyError) as wrong:
        Policy.from_mapping(mapping)
    assert wrong.value.path == path
    assert says in str(wrong.value)
    assert isinstance(wrong.value, ValueError)


def test_a_part_of_another_kind_is_a_clear_error() -> None:
    with pytest.raises(PolicyError, match=r"queue: 0\.1 is not a Queue"):
        Policy(queue=0.1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # what an untyped caller may do
    with pytest.raises(PolicyError, match=r"rates\[0\]"):
        Policy(rates=["100/second"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # what an untyped caller may do


def test_a_file_that_is_not_toml_is_a_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("[queue\n")
    with pytest.raises(PolicyError, match=r"policy\.toml is not TOML: .*line 1"):
        Policy.from_toml(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(PolicyError, match="not TOML"):
        Policy.from_toml(file)


def test_a_policy_does_not_change() -> None:
    with pytest.raises(AttributeError):
        Policy().queue = Queue()  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # the test's point
