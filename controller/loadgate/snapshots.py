"""What does a controller look like at this moment?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadgate.telemetry import BrakeLook, ClassCounts, Snapshot, integral

if TYPE_CHECKING:
    from loadgate.controller import AdmissionController


def take_snapshot(controller: AdmissionController) -> Snapshot:
    """Read everything there is to know; nothing that counts is changed by reading."""
    admission, telemetry = controller.admission, controller.telemetry
    # A scrape may come from another thread. Whatever a request changes together is read
    # together, with no call in between at which the interpreter could switch threads; and
    # after the clock, because a counter that says too much falls back the next time.
    now = controller.clock()
    in_flight, held, started = admission.in_flight, telemetry.held, telemetry.started
    long_lived = admission.long_lived.places
    waiting = admission.room.depth
    rates, store = controller.all_rates, controller.shared
    stored = store.stats() if store is not None else None
    limit = admission.current_limit()
    admitted, refused = sum(telemetry.admitted), sum(telemetry.refused.values())
    max_queue, max_depth = admission.thresholds()
    return Snapshot(
        name=controller.name,
        at=now,
        limit=limit,
        in_flight=in_flight,
        long_lived=long_lived,
        waiting=waiting,
        arrived=admitted + refused + telemetry.left + waiting,
        admitted=admitted,
        finished={outcome.value: n for outcome, n in telemetry.finished.items()},
        refused={reason.value: n for reason, n in telemetry.refused.items()},
        would_refuse={reason.value: n for reason, n in telemetry.would_refuse.items()},
        left=telemetry.left,
        classes={
            name: ClassCounts(admitted, rate_limited, overloaded)
            for name, admitted, rate_limited, overloaded in zip(
                controller.policy.priorities,
                telemetry.admitted,
                telemetry.rate_limited,
                telemetry.overloaded,
                strict=False,
            )
        },
        peak=telemetry.peak_lately(in_flight, now),
        busy=integral(held, started, in_flight, now),
        queued=telemetry.queued + waiting * max(0.0, now - telemetry.queued_at),
        limit_seconds=telemetry.limit_seconds + limit * max(0.0, now - telemetry.limit_at),
        saturated=telemetry.full(now),
        limit_rises=telemetry.limit_rises,
        limit_falls=telemetry.limit_falls,
        held=held,
        wasted=telemetry.wasted,
        latency=telemetry.latency.freeze(),
        wait=telemetry.wait.freeze(),
        drain_rate=admission.entrance.drain.rate(limit),
        max_queue=max_queue,
        max_depth=max_depth,
        loop_lag=controller.watch.lag(now),
        stalls=telemetry.stalls,
        stalled=telemetry.stalled,
        paced=admission.intake.paced,
        draining=admission.draining,
        algorithm=controller.policy.concurrency.algorithm,
        limit_state=admission.limit.explain(),
        rates={
            **(rates.stats() if rates is not None else {}),
            **(stored.rates if stored is not None else {}),
        },
        store=stored,
        contended=admission.contended,
        fair_level=admission.accounts.level(now),
        evicted=telemetry.evicted,
        spared=telemetry.spared,
        bypassing=admission.bypassed,
        bypassed=controller.bypassed(),
        brake=admission.brake,
        signals={
            name: BrakeLook(
                state.value, state.target, state.factor, state.broken, state.explain(name)
            )
            for name, state in controller.brakes.state().items()
        },
        memory_used=controller.brakes.memory_used,
        memory_bound=controller.brakes.memory_bound,
    )
