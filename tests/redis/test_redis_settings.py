"""Whatever is given as a store's settings is a store that works or an error that says where."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgate import AdmissionController, Policy, Rate
from loadgate.errors import PolicyError
from loadgate.integrations.redis.keys import Keys
from loadgate.rates.member import Member
from loadgate.shared import Store
from tests.redis.shared_policy import SECRET

RATE = Rate("r", "1/second", shared=True)

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 100),
    st.sampled_from([10**400, -(10**400), 1 << 60]),
    st.floats(),
    st.sampled_from(
        ["strict", "local", "open", "closed", "redis://h", "unix:///x", "env:NOTHING", "r", SECRET]
    ),
    st.text(max_size=20),
    st.binary(max_size=3),
)
garbage = st.one_of(
    leaves, st.lists(leaves, max_size=2), st.dictionaries(leaves, leaves, max_size=2)
)


@pytest.mark.parametrize(
    ("wrong", "path", "says"),
    [
        ({"url": 5}, "url", "text, not int"),
        ({"url": None}, "url", "text, not NoneType"),
        ({"secret": 5}, "secret", "text, not int"),
        ({"secret": "short"}, "secret", "at least 16"),
        ({"overrides": 5}, "overrides", "5 does not map"),
        ({"overrides": {5: "open"}}, "overrides[5]", "not the name"),
        ({"overrides": {"r": 10**5000}}, "overrides.r", "a value of type int is none of emergency"),
        ({"prefix": 5}, "prefix", "text, not int"),
        ({"prefix": ""}, "prefix", "1 to 100"),
        ({"prefix": "a\n"}, "prefix", "plain ASCII"),
        ({"prefix": "x" * 101}, "prefix", "1 to 100"),
        ({"overdraft": "x"}, "overdraft", "'x' is not a number"),
        ({"overdraft": 10**5000}, "overdraft", "between 0 and 1000000000"),
        ({"overdraft": float("nan")}, "overdraft", "between 0 and 1000000000"),
        ({"mode": 10**5000}, "mode", "none of strict, local"),
        ({"mode": ["local"]}, "mode", "none of strict, local"),
        ({"on_failure": 1}, "on_failure", "none of emergency, open, closed"),
        ({"budget": 10**5000}, "budget", "between 0.001 and 1"),
        ({"budget": True}, "budget", "not a number"),
        ({"lease": "1"}, "lease", "not a number"),
        ({"share": 0.0}, "share", "above 0"),
        ({"share": 10**5000}, "share", "between 0 and 1"),
    ],
)
def test_a_wrong_value_from_python_is_said_with_path_and_bound(
    wrong: dict[str, Any], path: str, says: str
) -> None:
    arguments: dict[str, Any] = {"url": "redis://h", "secret": SECRET, **wrong}
    with pytest.raises(PolicyError) as caught:
        Store(**arguments)
    assert caught.value.path == path
    assert says in str(caught.value)
    assert len(str(caught.value)) < 250


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from(Store.__struct_fields__), garbage, max_size=4))
def test_whatever_is_given_is_a_store_or_a_policy_error(given_: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"url": "redis://h", "secret": SECRET, **given_}
    with contextlib.suppress(PolicyError):
        store = Store(**arguments)
        repr(store)
        AdmissionController(Policy(rates=[RATE], store=store))


@given(st.text(max_size=50))
def test_whatever_url_is_given_is_understood_or_a_policy_error(text: str) -> None:
    for scheme in ("", "redis://", "rediss://", "redis+cluster://", "redis+sentinel://", "unix://"):
        with contextlib.suppress(PolicyError):
            AdmissionController(Policy(rates=[RATE], store=Store(scheme + text, SECRET)))


@pytest.mark.parametrize("url", ["hunter2", "hunter2:hunter2@h", ":hunter2", "hunter2://h"])
def test_a_password_in_the_place_of_the_url_is_not_shown(url: str) -> None:
    assert "hunter2" not in repr(Store(url, SECRET))


def test_a_secret_in_the_environment_is_checked_like_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = Policy(rates=[RATE], store=Store("redis://h", "env:STORE_SECRET"))
    monkeypatch.setenv("STORE_SECRET", "short")
    with pytest.raises(PolicyError, match=r"store\.secret: must have at least 16") as caught:
        AdmissionController(policy)
    assert "short" not in str(caught.value)


@given(st.text(st.characters(), max_size=20), st.text(st.characters(), max_size=20))
def test_any_text_can_be_a_client_or_a_name(client: str, name: str) -> None:
    keys = Keys("p", "\ud800" * 16)
    rate = Rate("r" + name, "1/second", key="k" + name)
    key = keys.key(keys.head(rate), client, keys.tail(rate))
    assert key.isascii()
    assert key.count(b"{") == key.count(b"}") == 1
    assert not set(key) & set(b" \r\n\0")


class Name(str):
    """Text of a type of its own, as frameworks have it."""


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["strict", "local"])
@pytest.mark.parametrize(("key", "kind"), [(7, "int"), ({"id": 7}, "dict"), (["a"], "list")])
async def test_a_shared_rate_says_too_that_a_key_is_neither_text_nor_bytes(
    mode: Any, key: Any, kind: str
) -> None:
    rate = Rate("a", "1/second", shared=True, key="account")
    store = Store(url="redis://127.0.0.1:1", secret=SECRET, mode=mode)
    async with AdmissionController(Policy(rates=[rate], store=store)) as gate:
        with pytest.raises(TypeError, match=f"a rate counts str or bytes keys, not {kind}: "):
            gate.admit({"account": key}).begin()


def test_text_of_a_type_of_its_own_is_the_same_client() -> None:
    member = Member(RATE)
    assert type(member.key_of(Name("ann"))) is str
    assert member.key_of(Name("ann")) == "ann"
