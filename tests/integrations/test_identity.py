from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgate.integrations.forwarded import (
    MAX_ELEMENT_BYTES,
    forwarded_from_right,
    list_from_right,
    parse_address,
)
from loadgate.integrations.identity import Address, ApiKey, Bearer, KeyHasher, combine

PROXY = "10.0.0.1"


def scope(client: Any = (PROXY, 4711), *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http", "client": client, "headers": list(headers)}


def behind(*values: bytes, name: bytes = b"x-forwarded-for", peer: Any = (PROXY, 1)) -> Any:
    return scope(peer, *((name, value) for value in values))


# --- the socket -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "key"),
    [
        (("203.0.113.7", 4711), "203.0.113.7"),
        (("203.0.113.7", "4711"), "203.0.113.7"),  # Granian gives the port as a string
        (["203.0.113.7", 4711], "203.0.113.7"),
        (("::ffff:203.0.113.7", 1), "203.0.113.7"),  # a dual-stack listener
        (("::FFFF:CB00:7107", 1), "203.0.113.7"),
        (("0:0:0:0:0:ffff:203.0.113.7", 1), "203.0.113.7"),
        (("64:ff9b::cb00:7107", 1), "203.0.113.7"),
        (("2001:db8:1:2:3:4:5:6", 1), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::", 1), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1), "fe80::/64"),
        (("testclient", 50000), "testclient"),
        (None, None),
        (("", 0), None),
        (("", "0"), None),
    ],
)
def test_the_peer_of_the_socket_is_the_client(client: Any, key: str | None) -> None:
    assert Address()(scope(client)) == key


def test_an_address_can_tell_other_keys_while_all_runs() -> None:
    identify = Address()
    by_peer = identify.by_peer
    assert by_peer is not None
    assert (identify(scope()), by_peer(PROXY)) == (PROXY, PROXY)
    identify.tell({"address": (32, 64)})
    assert identify(scope()) == by_peer(PROXY) == {"address": PROXY}
    with pytest.raises(ValueError, match="at least one key is needed"):
        identify.tell({})
    identify.tell(None)
    assert identify(scope()) == PROXY


def test_a_scope_without_client_or_headers_is_anonymous() -> None:
    assert Address()({"type": "http"}) is None


def test_addresses_that_rotate_inside_one_64_are_one_client() -> None:
    identify = Address()
    assert len({str(identify(scope((f"2001:db8::{n:x}", 1)))) for n in range(1, 100)}) == 1


def test_headers_change_nothing_without_a_trusted_proxy() -> None:
    identify = Address()
    headers = [b"x-forwarded-for", b"forwarded", b"x-real-ip", b"x-client-ip"]
    for name in headers:
        assert identify(behind(b"198.51.100.9", name=name)) == PROXY


def test_several_sizes_of_key_at_once() -> None:
    identify = Address(keys={"address": (32, 64), "network": (24, 48)})
    assert identify(scope(("203.0.113.7", 1))) == {
        "address": "203.0.113.7",
        "network": "203.0.113.0/24",
    }
    assert identify(scope(("2001:db8:1:2::9", 1))) == {
        "address": "2001:db8:1:2::/64",
        "network": "2001:db8:1::/48",
    }
    assert identify(scope(None)) is None


def test_a_prefix_of_zero_and_whole_ipv6_addresses_work() -> None:
    assert Address(ipv4_prefix=0)(scope(("203.0.113.7", 1))) == "0.0.0.0/0"
    assert Address(ipv6_prefix=128)(scope(("2001:db8::1", 1))) == "2001:db8::1"


# --- trusted proxies --------------------------------------------------------------------------

FORWARDED_FOR = Address(trusted=["10.0.0.0/8", "2001:db8:aaaa::/48"], header="x-forwarded-for")


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ([b"203.0.113.7"], "203.0.113.7"),
        ([b"6.6.6.6, 203.0.113.7"], "203.0.113.7"),
        ([b"6.6.6.6, 203.0.113.7, 10.2.3.4"], "203.0.113.7"),
        ([b"6.6.6.6", b"203.0.113.7", b"10.2.3.4"], "203.0.113.7"),
        ([b"203.0.113.7:4711"], "203.0.113.7"),
        ([b"[2001:db8:1::5]:443"], "2001:db8:1::/64"),
        ([b"[2001:db8:1::5]"], "2001:db8:1::/64"),
        ([b"2001:db8:1::5"], "2001:db8:1::/64"),
        ([b"fe80::1%eth0"], "fe80::/64"),
        ([b"::ffff:203.0.113.7"], "203.0.113.7"),
        ([b"203.0.113.7,  2001:db8:aaaa::1"], "203.0.113.7"),
        ([b"203.0.113.7, ::ffff:10.9.9.9"], "203.0.113.7"),
        ([b"203.0.113.7,, ,"], "203.0.113.7"),
        ([b"\t203.0.113.7 "], "203.0.113.7"),
        # every hop is trusted: the one furthest away
        ([b"10.7.7.7, 10.2.3.4"], "10.7.7.7"),
        # junk is never a key: the last trusted hop is
        ([b"unknown"], PROXY),
        ([b"203.0.113.7, unknown"], PROXY),
        ([b"203.0.113.7, garbage;<script>, 10.2.3.4"], "10.2.3.4"),
        ([b""], PROXY),
        ([b" , ,"], PROXY),
        ([], PROXY),
        ([b"203.0.113.7:99999"], PROXY),
        ([b"203.0.113.07"], PROXY),
        ([b"203.0.113.7:80:80"], PROXY),
        ([b"[2001:db8::1"], PROXY),
        ([b"[2001:db8::1]x"], PROXY),
        ([b"\xff\xfe\x00"], PROXY),
        ([b"\xd9\xa1.2.3.4"], PROXY),
        ([b'"203.0.113.7"'], PROXY),
        ([b"1" * 65536], PROXY),
        ([b"," * 65536], PROXY),
        # a long forged left side does not hide what the proxy appended
        ([b"6.6.6.6, " * 8000 + b"203.0.113.7"], "203.0.113.7"),
    ],
)
def test_x_forwarded_for_is_read_from_the_right(values: list[bytes], key: str) -> None:
    assert FORWARDED_FOR(behind(*values)) == key


def test_an_untrusted_peer_cannot_choose_its_key() -> None:
    seen = {
        str(FORWARDED_FOR(behind(f"198.51.100.{n}".encode(), peer=("203.0.113.9", 1))))
        for n in range(50)
    }
    assert seen == {"203.0.113.9"}


def test_a_mapped_peer_matches_a_trusted_ipv4_network_and_the_other_way_round() -> None:
    assert FORWARDED_FOR(behind(b"203.0.113.7", peer=("::ffff:10.0.0.9", 1))) == "203.0.113.7"
    mapped = Address(trusted=["::ffff:10.0.0.0/104"], header="x-forwarded-for")
    assert mapped(behind(b"203.0.113.7")) == "203.0.113.7"
    assert mapped(behind(b"203.0.113.7", peer=("11.0.0.1", 1))) == "11.0.0.1"


def test_unix_peers_are_trusted_only_if_declared() -> None:
    declared = Address(trusted=["unix"], header="x-forwarded-for")
    for peer in (None, ("", 0), ("", "0")):
        assert declared(behind(b"203.0.113.7", peer=peer)) == "203.0.113.7"
        assert FORWARDED_FOR(behind(b"203.0.113.7", peer=peer)) is None
    assert declared(behind(b"junk", peer=None)) is None
    assert declared(behind(b"203.0.113.7", peer=(PROXY, 1))) == PROXY


@pytest.mark.parametrize(
    ("hops", "value", "key"),
    [
        (1, b"6.6.6.6, 203.0.113.7", "203.0.113.7"),
        (2, b"6.6.6.6, 203.0.113.7, 198.51.100.1", "203.0.113.7"),
        (2, b"203.0.113.7", PROXY),  # it did not come through both
        (2, b"203.0.113.7, unknown", PROXY),
        (2, b"unknown, 198.51.100.1", "198.51.100.1"),
        (1, b"", PROXY),
    ],
)
def test_a_hop_count_takes_that_entry_from_the_right(hops: int, value: bytes, key: str) -> None:
    assert Address(hops=hops, header="x-forwarded-for")(behind(value)) == key


def test_hops_and_addresses_together_need_both() -> None:
    identify = Address(hops=1, trusted=[PROXY], header="x-forwarded-for")
    assert identify(behind(b"203.0.113.7")) == "203.0.113.7"
    assert identify(behind(b"203.0.113.7", peer=("192.0.2.1", 1))) == "192.0.2.1"


FORWARDED = Address(trusted=["10.0.0.0/8"], header="forwarded")


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ([b"for=203.0.113.7"], "203.0.113.7"),
        ([b"For=203.0.113.7;Proto=http;by=10.0.0.1"], "203.0.113.7"),
        ([b"by=10.0.0.1; for=203.0.113.7"], "203.0.113.7"),
        ([b'for="203.0.113.7:4711"'], "203.0.113.7"),
        ([b'for="[2001:db8:1::17]:4711"'], "2001:db8:1::/64"),
        ([b"for=[2001:db8:1::17]"], "2001:db8:1::/64"),  # unquoted by mistake, yet clear
        ([b'for="203.0.113\\.7"'], "203.0.113.7"),
        ([b'for="203.0.113.7:_port"'], "203.0.113.7"),
        ([b"for=6.6.6.6, for=203.0.113.7"], "203.0.113.7"),
        ([b"for=6.6.6.6", b"for=203.0.113.7", b"for=10.2.3.4"], "203.0.113.7"),
        ([b'for="_a,for=6.6.6.6", for=203.0.113.7'], "203.0.113.7"),
        # a quote that the client left open does not swallow what its proxy appended
        ([b'for="_a, for=203.0.113.7'], "203.0.113.7"),
        ([b'for="\\\\"x\\", for=203.0.113.7;host="a\\"b,c"'], "203.0.113.7"),
        ([b"for=unknown"], PROXY),
        ([b"for=_hidden"], PROXY),
        ([b'for="_a,for=6.6.6.6"'], PROXY),
        ([b"for=203.0.113.7;for=6.6.6.6"], PROXY),
        ([b"proto=http"], PROXY),
        ([b"for"], PROXY),
        ([b"for="], PROXY),
        ([b'for="203.0.113.7'], PROXY),
        ([b'for="203.0.113.7\\'], PROXY),
        ([b"for = 203.0.113.7"], PROXY),
        ([b"for=203.0.113.7 proto=http"], PROXY),
        ([b"203.0.113.7"], PROXY),
        ([b'"' * 65536], PROXY),
        ([b'\\"' * 32768], PROXY),
        ([b"for=6.6.6.6;" * 6000], PROXY),
        ([b"for=unknown, for=10.2.3.4"], "10.2.3.4"),
        ([b""], PROXY),
    ],
)
def test_forwarded_is_read_from_the_right(values: list[bytes], key: str) -> None:
    assert FORWARDED(behind(*values, name=b"forwarded")) == key


def test_only_the_chosen_header_is_read() -> None:
    assert FORWARDED(behind(b"203.0.113.7", name=b"x-forwarded-for")) == PROXY
    assert FORWARDED_FOR(behind(b"for=203.0.113.7", name=b"forwarded")) == PROXY


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ([b"203.0.113.7"], "203.0.113.7"),
        ([b" 203.0.113.7:80 "], "203.0.113.7"),
        ([b"203.0.113.7", b"203.0.113.7"], "203.0.113.7"),
        ([b"203.0.113.7", b"6.6.6.6"], PROXY),
        ([b"203.0.113.7, 6.6.6.6"], PROXY),
        ([b"junk"], PROXY),
        ([b""], PROXY),
    ],
)
def test_x_real_ip_holds_one_address_or_none(values: list[bytes], key: str) -> None:
    identify = Address(trusted=["10.0.0.0/8"], header="x-real-ip")
    assert identify(behind(*values, name=b"x-real-ip")) == key


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"header": "x-forwarded-for"}, "trusted"),
        ({"trusted": ["10.0.0.1"]}, "header"),
        ({"hops": 1}, "header"),
        ({"hops": 0, "header": "forwarded"}, "hops: 0"),
        ({"hops": 33, "header": "forwarded"}, "hops: 33"),
        ({"hops": 1, "header": "x-real-ip"}, "x-real-ip"),
        ({"trusted": ["*"], "header": "forwarded"}, r"'\*'"),
        ({"trusted": ["10.0.0.1/8"], "header": "forwarded"}, "10.0.0.1/8"),
        ({"trusted": ["proxy.internal"], "header": "forwarded"}, "proxy.internal"),
        ({"trusted": "10.0.0.1", "header": "forwarded"}, "list"),
        ({"trusted": ["10.0.0.1"], "header": "x-client-ip"}, "x-client-ip"),
        ({"keys": {}}, "keys"),
        ({"keys": {"network": (33, 64)}}, "network"),
        ({"ipv6_prefix": 129}, "129"),
        ({"max_header_bytes": 0}, "max_header_bytes"),
    ],
)
def test_wrong_settings_are_refused_with_their_name(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Address(**settings)


# --- laws -------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_no_header_makes_a_key_that_is_not_an_address(values: list[bytes]) -> None:
    for identify, name in ((FORWARDED_FOR, b"x-forwarded-for"), (FORWARDED, b"forwarded")):
        key = identify(behind(*values, name=name))
        assert isinstance(key, str)
        assert parse_address(key.partition("/")[0]) is not None


@given(st.binary(max_size=300), st.ip_addresses())
def test_nothing_left_of_the_client_matters(forged: bytes, client: Any) -> None:
    told = str(client).encode()
    honest = FORWARDED_FOR(behind(told))
    if FORWARDED_FOR(behind(told)) == PROXY:  # drawn from the proxies' own network
        return
    folded = parse_address(str(client))
    assert folded is not None
    if str(folded).startswith("10.") or str(folded).startswith("2001:db8:aaaa:"):
        return
    assert FORWARDED_FOR(behind(forged + b", " + told)) == honest
    assert FORWARDED_FOR(behind(forged, told)) == honest
    element = b'for="[' + told + b']"' if b":" in told else b"for=" + told
    assert FORWARDED(behind(forged + b", " + element, name=b"forwarded")) == honest


@given(st.lists(st.binary(max_size=50), max_size=4), st.integers(1, 100), st.integers(1, 8))
def test_reading_stops_at_its_bounds(lines: list[bytes], max_bytes: int, entries: int) -> None:
    read = list(list_from_right(lines, max_bytes, entries))
    assert len(read) <= entries
    assert sum(map(len, read)) <= max_bytes
    assert len(list(forwarded_from_right(lines, max_bytes, entries))) <= entries


@pytest.mark.parametrize(
    "junk", [b"x" * 9000, b'"' + b"x" * 9000, b'"' * 9001, b"\\" * 9000, b";".join([b"a=b"] * 300)]
)
def test_an_element_that_is_too_long_is_no_hop_and_ends_the_chain(junk: bytes) -> None:
    before = b"for=198.51.100.9, "
    assert list(forwarded_from_right([before + junk], 100_000, 32)) == [None]
    assert FORWARDED(behind(before + junk, name=b"forwarded")) == PROXY
    # What a proxy appends to the right of it counts as ever.
    assert FORWARDED(behind(junk + b", for=203.0.113.7", name=b"forwarded")) == "203.0.113.7"


def test_an_element_may_be_as_long_as_two_addresses_and_a_host_are() -> None:
    element = b"for=203.0.113.7;host=" + b"a" * (MAX_ELEMENT_BYTES - 21)
    long, longer = ([b"for=10.0.0.9," + element + more] for more in (b"", b"a"))
    assert list(forwarded_from_right(long, 8192, 32)) == [b"203.0.113.7", b"10.0.0.9"]
    assert list(forwarded_from_right(longer, 8192, 32)) == [None]


@pytest.mark.parametrize(
    ("header", "entry"),
    [("x-forwarded-for", b"%s"), ("x-real-ip", b"%s"), ("forwarded", b"for=%s")],
)
def test_junk_through_a_trusted_proxy_is_not_remembered_at_its_length(
    header: Any, entry: bytes
) -> None:
    address = Address(trusted=[PROXY], header=header)
    tracemalloc.start()
    try:
        for n in range(100):
            junk = entry % (b"%d" % n).rjust(8_000, b"x")
            assert address(behind(junk, name=header.encode())) == PROXY
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000


def test_long_text_for_a_peer_is_not_remembered_at_its_length() -> None:
    address, trusting = Address(), Address(trusted=[PROXY], header="x-forwarded-for")
    tracemalloc.start()
    try:
        for n in range(4_200):
            peer = (f"{n:x<300}", 1)
            for identify in (address, trusting):
                key = identify(scope((peer[0] * 20, 1)))
                assert key == peer[0][:253]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 8_000_000


@given(st.text(max_size=120))
def test_parsing_any_text_gives_an_address_or_nothing(text: str) -> None:
    address = parse_address(text)
    assert address is None or parse_address(str(address)) == address


# --- credentials ------------------------------------------------------------------------------

ACCOUNTS = {"s3cret": "42", "203.0.113.7": "looks-like-an-address"}


def test_a_known_api_key_is_its_account_and_an_unknown_one_its_address() -> None:
    identify = ApiKey(ACCOUNTS.get)
    peer = ("203.0.113.7", 1)
    assert identify(scope(peer, (b"x-api-key", b"s3cret"))) == "account:42"
    assert identify(scope(peer, (b"x-api-key", b"forged"))) == "203.0.113.7"
    assert identify(scope(peer, (b"x-api-key", b""))) == "203.0.113.7"
    assert identify(scope(peer)) == "203.0.113.7"


def test_two_api_keys_or_a_huge_one_count_as_none() -> None:
    identify = ApiKey(lambda key: key[:3])
    peer = ("203.0.113.7", 1)
    two = [(b"x-api-key", b"aaa"), (b"x-api-key", b"bbb")]
    assert identify(scope(peer, *two)) == "203.0.113.7"
    assert identify(scope(peer, (b"x-api-key", b"a" * 65536))) == "203.0.113.7"


def test_an_account_never_equals_an_address() -> None:
    identify = ApiKey(lambda key: "203.0.113.7")
    assert identify(scope(("203.0.113.7", 1), (b"x-api-key", b"x"))) != "203.0.113.7"


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"Bearer s3cret", "account:42"),
        (b"bearer  s3cret ", "account:42"),
        (b"Basic s3cret", PROXY),
        (b"Bearer", PROXY),
        (b"Bearer other", PROXY),
        (b"\xff\xfe", PROXY),
    ],
)
def test_a_bearer_token_counts_by_its_verified_subject(value: bytes, key: str) -> None:
    assert Bearer(ACCOUNTS.get)(scope((PROXY, 1), (b"authorization", value))) == key


def test_combined_functions_give_independent_keys() -> None:
    identify = combine(
        account=ApiKey(ACCOUNTS.get, otherwise=lambda _: None),
        address=Address(),
        sizes=Address(keys={"network": (24, 48)}),
    )
    assert identify(scope(("203.0.113.7", 1), (b"x-api-key", b"s3cret"))) == {
        "account": "account:42",
        "address": "203.0.113.7",
        "network": "203.0.113.0/24",
    }
    assert identify(scope(None)) == {}


# --- hashing ----------------------------------------------------------------------------------


def test_hashes_depend_on_the_secret_and_not_on_the_process() -> None:
    one, same, other = KeyHasher(b"a" * 16), KeyHasher(b"a" * 16), KeyHasher(b"b" * 16)
    assert one("acct-42") == same("acct-42") != other("acct-42")
    assert KeyHasher()("acct-42") != KeyHasher()("acct-42")
    assert len(one("acct-42")) == 32


def test_long_secrets_are_used_whole_and_short_ones_refused() -> None:
    assert KeyHasher(b"a" * 200)("k") != KeyHasher(b"a" * 199)("k")
    with pytest.raises(ValueError, match="15 bytes"):
        KeyHasher(b"a" * 15)


@given(st.one_of(st.text(), st.binary()), st.one_of(st.text(), st.binary()))
def test_different_keys_have_different_hashes(one: str | bytes, other: str | bytes) -> None:
    hasher = KeyHasher(b"0123456789abcdef")
    same = type(one) is type(other) and one == other
    assert (hasher(one) == hasher(other)) == same


def test_lone_surrogates_can_be_hashed() -> None:
    assert len(KeyHasher()("\udcff")) == 32
