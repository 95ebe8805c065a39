"""A thousand addresses within their own rates ask for a thousand times what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench import botnet, botnet_who
from loadgate import Policy

PAGE = Path(__file__).parents[2] / "docs" / "botnet.md"
EVERY_SIZE = ("account", "address", "network", "operator")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_page_shows_the_policy_and_the_identity_that_are_measured() -> None:
    assert botnet.POLICY.read_text() in blocks("toml")
    code = Path(botnet_who.__file__).read_text().partition('"""\n\n')[2]
    assert code in blocks("python")
    assert Policy.from_toml(botnet.POLICY).rates


@pytest.mark.parametrize("spread", botnet.SPREADS.values(), ids=list(botnet.SPREADS))
def test_signed_in_users_are_served_during_a_thousandfold_attack(spread: tuple[int, int]) -> None:
    result = botnet.attack(botnet.only(EVERY_SIZE), spread, seconds=1.0)
    assert result.factor == pytest.approx(1000.0)
    assert result.users >= 0.9
    # Every address stays within its own rate: that one refuses nobody.
    assert result.refused_by["address"] == result.refused_by["account"] == 0
    # What the bots get of the service is at most what their operators may have.
    operators = min(spread[1], 4)
    assert result.bots_served <= operators * (50 + 25)


def test_who_is_signed_in_counts_by_account_and_comes_first() -> None:
    headers = [
        (b"authorization", b"Bearer session-7"),
        (b"x-forwarded-for", b"10.0.1.2"),
    ]
    scope = {"type": "http", "client": ("127.0.0.1", 5000), "headers": headers}
    caller = botnet_who.identify(scope)
    assert (caller.client, caller.priority) == ({"account": "account:user-7"}, "users")
    # A token that nobody issued buys nothing: it is one more anonymous request of its network.
    headers[0] = (b"authorization", b"Bearer invented")
    caller = botnet_who.identify(scope)
    assert caller.priority == "anonymous"
    assert caller.client == {
        "address": "10.0.1.2",
        "network": "10.0.1.0/24",
        "range": "10.0.0.0/16",
        "operator": "operator-0",
    }
    assert botnet_who.identify({**scope, "client": None}).client == {"operator": "unknown"}
