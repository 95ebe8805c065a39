from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgate import Concurrency, Policy, PolicyError, Queue, Rate, Signals
from loadgate.policy import Store


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
        (
            {"signals": {"max_memory": "512MB"}},
            "signals.max_memory",
            "must be a number of bytes or \"container\", not '512MB'",
        ),
        ({"signals": {"max_memory": [1]}}, "signals.max_memory", "number of bytes"),
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
        ({"rates": [{"name": "a", "rate": "0/second"}]}, "rates[0].rate", "0/second"),
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
        ({"concurrency": {"max": 10**400}}, "concurrency.max", "between 1 and 1000000"),
        ({"concurrency": {"max": 10**5000}}, "concurrency.max", "between 1 and 1000000"),
        ({"concurrency": {"latency_target": 10**400}}, "concurrency.latency_target", "1000"),
        ({"concurrency": {"options": {"initial": 5}}}, "concurrency.options.initial", "5"),
        (
            {"concurrency": {"latency_target": 1.0, "options": {"latency_target": 5}}},
            "concurrency.options.latency_target",
            "beside",
        ),
        (
            {"signals": {"max_memory": 10**400}},
            "signals.max_memory",
            "1000000000000000",
        ),
        ({"queue": {"fair_slots": 1 << 40}}, "queue.fair_slots", "1048576"),
        ({"queue": {"fair_slots": 10**5000}}, "queue.fair_slots", "a value of type int"),
        ({"reserve": {"default": "half"}}, "reserve.default", "'half'"),
        (
            {"rates": [{"name": "a", "limit": 5, "match": {"x": "y", "a.b": ["t", 1]}}]},
            "rates[0].match.a.b[1]",
            "1",
        ),
        ({"store": {"url": "u", "secret": "s", "overrides": {"r": 5}}}, "store.overrides.r", "5"),
        ({1: 2}, "[1]", "names are text"),
        ({"queue": {5: 1}}, "queue[5]", "names are text"),
        ({"queue": {"rule": "\ud800"}}, "queue.rule", "Unicode"),
        ({"rates": [[[[[[[[[1]]]]]]]]]}, "rates[0][0][0][0][0][0][0]", "nested too deeply"),
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


NO_MAPPINGS: list[Any] = [None, "abc", [], [[]], 5, [("queue", {})]]


@pytest.mark.parametrize("what", NO_MAPPINGS)
def test_only_a_mapping_is_a_policy(what: Any) -> None:
    with pytest.raises(PolicyError, match="does not map names to settings") as wrong:
        Policy.from_mapping(what)
    assert wrong.value.path == ""


@pytest.mark.parametrize(
    ("make", "settings", "path", "says"),
    [
        (Policy, {"rates": 5}, "rates", "5 is not a list"),
        (Policy, {"rates": Rate("a", "5/second")}, "rates", "Rate"),
        (Policy, {"rates": "5/second"}, "rates", "'5/second' is not a list"),
        (Policy, {"priorities": "abc"}, "priorities", "'abc'"),
        (Policy, {"priorities": [["a"]]}, "priorities[0]", "['a']"),
        (Policy, {"enabled": "no"}, "enabled", "'no'"),
        (Policy, {"cancel": 1}, "cancel", "1"),
        (Policy, {"reserve": 5}, "reserve", "5"),
        (Policy, {"reserve": {5: 0.5}}, "reserve[5]", "text"),
        (Policy, {"store": 5}, "store", "5"),
        (Concurrency, {"algorithm": []}, "algorithm", "[]"),
        (Concurrency, {"min": "x"}, "min", "'x'"),
        (Concurrency, {"max": None}, "max", "None"),
        (Concurrency, {"initial": True}, "initial", "True"),
        (Concurrency, {"mode": []}, "mode", "[]"),
        (Concurrency, {"options": 5}, "options", "5"),
        (Concurrency, {"options": {5: 1}}, "options[5]", "text"),
        (Concurrency, {"options": {"min": 3}}, "options.min", "3"),
        (Queue, {"fair_slots": "x"}, "fair_slots", "'x'"),
        (Queue, {"fair_slots": 2.0}, "fair_slots", "2.0"),
        (Queue, {"fair_hand": None}, "fair_hand", "None"),
        (Queue, {"fair_by": 5}, "fair_by", "5"),
        (Queue, {"max_wait": 10**5000}, "max_wait", "between 0 and 3600"),
        (Signals, {"max_memory": 10**400}, "max_memory", "1000000000000000"),
        (Signals, {"max_lag": "x"}, "max_lag", "'x'"),
        (Signals, {"max_memory": "512MB"}, "max_memory", "must be a number of bytes or"),
    ],
)
def test_what_an_untyped_caller_gets_wrong_is_said_like_a_file_s_mistake(
    make: Any, settings: dict[str, Any], path: str, says: str
) -> None:
    with pytest.raises(PolicyError) as wrong:
        make(**settings)
    assert wrong.value.path == path
    assert says in str(wrong.value)
    assert len(str(wrong.value)) < 250


def test_a_message_about_a_value_that_cannot_be_shown_says_its_type() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise OSError

    with pytest.raises(PolicyError, match="a value of type Shy is not a number"):
        Queue(max_wait=Shy())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # what an untyped caller may do


NAMES = sorted(
    {
        *(field for kind in (Policy, Concurrency, Queue, Signals, Rate, Store)
          for field in kind.__struct_fields__),
        *("window", "ratio", "timeout", "buckets", "saturation", "update", "probe", "smoothing"),
    }
)  # fmt: skip
WORDS = [
    "adaptive", "aimd", "bbr", "envoy-gradient", "vegas", "enforce", "off", "fair", "budget",
    "container", "default", "5/second", "fixed-window", "a", "env:X", "401", "",
]  # fmt: skip
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 2000),
    st.sampled_from([10**400, -(10**400), 1 << 60]),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.dates(),
)
keys = st.one_of(st.sampled_from(NAMES), st.text(max_size=4), st.integers(0, 3), st.none())
garbage = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
    ),
    max_leaves=12,
)


def part(kind: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(kind.__struct_fields__), garbage, max_size=3)


parts = st.fixed_dictionaries(
    {},
    optional={
        "rates": st.lists(part(Rate), max_size=2),
        "concurrency": part(Concurrency),
        "queue": part(Queue),
        "signals": part(Signals),
        "store": part(Store),
        "reserve": garbage,
        "priorities": garbage,
        "enabled": garbage,
    },
)


@settings(deadline=None, max_examples=400)
@given(st.one_of(garbage, parts))
def test_whatever_is_read_is_a_policy_that_works_or_a_policy_error(read: Any) -> None:
    with contextlib.suppress(PolicyError):
        policy = Policy.from_mapping(read)
        assert policy.concurrency.create().limit >= 1
        assert Policy.from_mapping(msgspec.to_builtins(policy)) == policy


@settings(deadline=None, max_examples=400)
@given(st.sampled_from([Policy, Concurrency, Queue, Signals]).flatmap(
    lambda kind: st.tuples(st.just(kind), part(kind))
))  # fmt: skip
def test_whatever_is_given_from_python_is_settings_that_work_or_a_policy_error(
    given: tuple[Any, dict[str, Any]],
) -> None:
    kind, arguments = given
    with contextlib.suppress(PolicyError):
        kind(**arguments)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(["adaptive", "aimd", "bbr", "envoy-gradient", "gradient2", "vegas"]),
       st.dictionaries(keys, garbage, max_size=2))  # fmt: skip
def test_whatever_the_options_of_a_limit_are_only_a_policy_error_is_raised(
    algorithm: str, options: dict[str, Any]
) -> None:
    with contextlib.suppress(PolicyError):
        Concurrency(algorithm, options=options)


def test_a_file_nested_without_end_or_with_an_endless_number_is_a_clear_error(
    tmp_path: Path,
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("a=" + "[" * 100_000)
    with pytest.raises(PolicyError, match=r"policy\.toml is nested too deeply"):
        Policy.from_toml(file)
    file.write_text("[queue]\nfair_slots=" + "9" * 5000)
    with pytest.raises(PolicyError, match=r"policy\.toml is not TOML: .*digits"):
        Policy.from_toml(file)


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
