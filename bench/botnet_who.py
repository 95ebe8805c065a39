"""Who is asking, when a botnet asks too? The identity function of docs/botnet.md."""

from loadgate.integrations.identity import Address, Bearer, Caller, Scope

# Yours: check signature and expiry, and answer from memory.
SESSIONS = {f"session-{number}": f"user-{number}" for number in range(100)}

# Yours: a table of prefixes, as whoever announces them publishes it.
OPERATORS = {f"10.{number}.0.0/16": f"operator-{number // 10}" for number in range(250)}

account = Bearer(SESSIONS.get, otherwise=lambda _: None)
address = Address(
    trusted=["127.0.0.1"],  # yours: the proxies in front
    header="x-forwarded-for",
    keys={"address": (32, 64), "network": (24, 48), "range": (16, 32)},
)


def identify(scope: Scope) -> Caller:
    """A signed-in user counts by account alone, and comes before everybody else."""
    user = account(scope)
    if user is not None:
        return Caller({"account": str(user)}, priority="users")
    keys = address(scope)
    if not isinstance(keys, dict):  # a unix socket: nobody knows who that is
        return Caller({"operator": "unknown"}, priority="anonymous")
    operator = OPERATORS.get(keys["range"], "unknown")
    return Caller({**keys, "operator": operator}, priority="anonymous")
