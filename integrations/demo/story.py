"""What happens in the demo, and what it claims."""

from __future__ import annotations

from typing import Final

from loadgate.integrations.demo.service import CONNECTIONS, FASTEST, SLOWEST
from loadgate.integrations.loadgen import ClientClass, Phase, Plan

# Requests per second: connections over the mean query.
CAPACITY: Final = CONNECTIONS / ((FASTEST + SLOWEST) / 2)

# Seconds from the intended start. 3.6 times the slowest query: a promise that the idle service
# keeps easily and an overloaded one cannot.
SLO: Final = 0.5

# Seconds after which a client gives up and closes its connection.
PATIENCE: Final = 2.0

POLITE: Final = "polite"
GREEDY: Final = "greedy"
POLITE_CLIENTS: Final = 400  # at five times capacity each asks 1.25 times a second: nobody's fault
CALM_RATE: Final = 0.6 * CAPACITY
STORM_RATE: Final = 5 * CAPACITY
GREEDY_RATE: Final = 2 * CAPACITY

CALM: Final = "calm"
ONE_GREEDY: Final = "one greedy client"
RISING: Final = "rising"
STORM: Final = "5x capacity"
FALLING: Final = "falling"
BACK: Final = "back to calm"

PHASES: Final = (
    Phase(CALM, 3.0),
    Phase(ONE_GREEDY, 4.0),
    Phase(RISING, 2.0),
    Phase(STORM, 5.0),
    Phase(FALLING, 1.0),
    Phase(BACK, 4.0),
)


def plan(url: str, seed: int) -> Plan:
    """The traffic of one half. Equal seeds send the same requests at the same moments."""
    return Plan(
        url=url,
        phases=PHASES,
        classes=(
            ClientClass(
                name=POLITE,
                rates=(
                    CALM_RATE,
                    CALM_RATE,
                    (CALM_RATE, STORM_RATE),
                    STORM_RATE,
                    (STORM_RATE, CALM_RATE),
                    CALM_RATE,
                ),
                clients=POLITE_CLIENTS,
                client_header="x-forwarded-for",
                client_name="10.1.{high}.{low}",
                timeout=PATIENCE,
            ),
            ClientClass(
                name=GREEDY,
                rates=(0.0, GREEDY_RATE),
                clients=1,
                client_header="x-forwarded-for",
                client_name="10.2.0.0",
                timeout=PATIENCE,
            ),
        ),
        slo=SLO,
        seed=seed,
        progress=0.25,
    )
