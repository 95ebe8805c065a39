"""From which number on is something wrong? Said once: alerts fire where panels turn red."""

from __future__ import annotations

from typing import Final

# Shares are 0 to 1. The two for refusals are those of Google's SRE workbook for error ratios of
# a service with an objective of 99.9 % over 30 days, rounded: 1 % for hours, 5 % for minutes.
SHED_NOTICE: Final = 0.01
SHED_HIGH: Final = 0.05
SHED_SEVERE: Final = 0.25
# The class that is served first is refused last; one in a thousand is already a fault.
CRITICAL_SHED: Final = 0.001
# Objective of 99.9 %: the burn rates 14.4 and 6 (SRE workbook, chapter 5) in shares of failures.
BUDGET: Final = 0.001
BURN_FAST: Final = 14.4 * BUDGET
BURN_SLOW: Final = 6 * BUDGET
# Every place taken.
SATURATED_NOTICE: Final = 0.5
SATURATED: Final = 0.9
# In flight over limit: a ceiling that holds nobody back is no fault.
USED: Final = 0.9
# Standard deviation of the limit over its mean: the limits here stay below 0.15 under steady load.
RESTLESS: Final = 0.3
# Mean latency over unloaded latency: a queue as long as the work itself doubles it.
INFLATED_NOTICE: Final = 1.5
INFLATED: Final = 3.0
# Growth of the unloaded latency within a day.
BASELINE_GROWN: Final = 2.0
# p99 of the wait over max_wait: beyond it most waits end in refusals.
WAIT_HIGH: Final = 0.8
# Share of occupied time spent on answers that came too late.
WASTED: Final = 0.05
# Share of the refusals that hit one client.
DOMINATES: Final = 0.6
# Share of time in which the event loop stood still.
STALLED: Final = 0.05
# Share of decisions made without the store: any is a store that is away.
STOOD_IN: Final = 0.001
# Seconds that one in a hundred waits for the store: ten times what a store nearby takes.
STORE_SLOW: Final = 0.01
# Requests per second below which shares say nothing: three in five minutes are an accident.
TRAFFIC: Final = 1.0
