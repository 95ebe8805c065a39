"""How many requests can this service run at once? Find the knee, stay a little above it.

The derivation, what was tried and dropped, and where it falls short: docs/adaptive.md.
"""

from __future__ import annotations

from math import inf, isfinite, log, sqrt
from typing import Any, Final

from loadgate.limits import knee
from loadgate.limits.levels import Change, Levels
from loadgate.limits.pace import DAMPING, SETTLE, SETTLE_SMALL, Paced
from loadgate.limits.probes import KNOWN, Probes
from loadgate.limits.settings import real
from loadgate.limits.window import WINDOW, WINDOW_EARLY, Window

# Windows for which not knowing the unloaded latency is urgent.
EARLY: Final = 10
# Latencies thrown away after a step of a climb: being quick is worth more there.
SETTLE_CLIMBING: Final = 1.0
# Changes beyond these shares count as large and as small ones.
LARGE: Final = 0.12
SMALL: Final = 0.04
# The limit is taken for full when so many were turned away or made to wait, or so much was used.
FULL_BLOCKED: Final = 0.1
FULL_USED: Final = 0.93
# A full limit is no evidence against it while the queue absorbs the peaks: only when this share
# is turned away, averaged over some ten windows, does it fall or probe.
PRESSED: Final = 0.03
PRESSED_WEIGHT: Final = 0.1
# Steps: up while no ceiling is known, up while that is less clear, up otherwise, down.
CLIMB: Final = 2.0
CLIMB_CAREFUL: Final = 1.4
RISE: Final = 1.4
FALL: Final = 0.7
# Latency over the unloaded one up to which there is no ceiling, plus one standard error.
ELASTIC: Final = 0.15
ELASTIC_CLEARLY: Final = 0.10
# While the unloaded latency is not known, a look below goes to this share of the limit; the next
# one, when nothing was lost there, further down.
LOOK_LOWER: Final = 0.5
LOOK_LOWER_STILL: Final = 0.35
# The first goes further where the first requests, at least so many, were far quicker than those who
# came later: to this share of the knee that they make likely, if that is below this share of the
# limit, but not below this one.
GLIMPSE: Final = 3
GLIMPSE_SHARE: Final = 0.7
GLIMPSE_BELOW: Final = 0.3
GLIMPSE_LEAST: Final = 0.1
# Where one request at a time is enough, a second one stands ready.
ALONE: Final = 2.0
# A probe goes to this share of the knee, where two thirds of the throughput remain.
PROBE: Final = 0.7
# Completions of the lowest level that can prove a queue while the unloaded latency is not known:
# those of an early window that has not aged.
LOWEST_KNOWN: Final = 29.0
# A look above the present level, where nothing is known: how far, how often at most, and the
# elasticity of throughput from which it is worth staying.
HIGHER: Final = 1.4
HIGHER_PAUSE: Final = 5.0
HIGHER_PAUSE_LATENCIES: Final = 60.0
HIGHER_GAIN: Final = 0.5
# Share of a window's answers that may be lost before the limit reacts to losses alone.
LOST: Final = 0.02


class AdaptiveLimit(Paced):
    """The limit that finds itself.

    Throughput over concurrency has a knee: the unloaded latency times the best throughput.
    Below it requests do not disturb each other, above it they only wait. The limit stays a
    little above, knee + 1.6 roots of it (2.5 where nobody may wait). Both factors come from one
    table of throughput by level (`Levels`), filled by windows of at least 60 completions and
    at least one latency:

    - the best throughput from windows in which the limit was full;
    - the unloaded latency from levels whose throughput is clearly below the best, which arise by
      themselves when the load is low, while the limit grows, or in short, rare probes;
    - a window that contradicts its own level says that the service has changed: the table is
      dropped and the next probe tells more queueing from slower work.

    While no ceiling is known and latency is as good as unloaded, a full limit doubles. A limit
    that is not full does not grow, and falls only where latency proves a queue. Every rise is
    spread over one latency, one place at a time: a service of constant times that is filled at
    once keeps that wave for good and loses a third of its throughput to it.

    Args:
        initial: The limit at the start; it is left within seconds.
        min: The lowest limit.
        max: The highest limit.
        latency_target: Mean seconds of running that are good enough, a second signal that does
            not learn: the limit never exceeds target x throughput. Without effect where even the
            unloaded latency is above it. None, the default, leaves it to the knee.
    """

    __slots__ = (
        "_base",
        "_careful",
        "_climbed_from",
        "_climbing",
        "_higher",
        "_levels",
        "_next_higher",
        "_pinned",
        "_pressure",
        "_probe_rate",
        "_probes",
        "_probing",
        "_reason",
        "_rises",
        "_stood",
        "latency_target",
    )

    def __init__(
        self, *, initial: int, min: int, max: int, latency_target: float | None = None
    ) -> None:
        super().__init__(initial=initial, min=min, max=max)
        self.latency_target = (
            None if latency_target is None else real("latency_target", latency_target, 1e-6)
        )
        self._levels = Levels()
        self._base = float(initial)  # the level wanted, before probes and rounding
        self._reason = "start"
        self._climbing = True  # no ceiling is known
        self._climbed_from = float(initial)  # the level before the last step of a climb
        self._careful = False  # climbing on the word of one window
        self._pinned = False  # a window was seen whose limit was really used
        self._pressure = 0.0  # share turned away, smoothed
        self._rises = 0  # in a row
        self._stood = False  # the window before showed a queue although the limit was not full
        self._probing = False
        self._probes = Probes()
        self._higher = False  # the probe under way goes up
        self._next_higher = -inf
        self._probe_rate = 0.0

    def _give_up(self, now: float) -> None:
        self._probing = self._higher = False
        self._steady = True
        self._overdue = inf
        self.limit = self._whole(self._base)
        self._settle(now, SETTLE_SMALL)

    def _look_failed(self, now: float, *, collapsed: bool) -> None:
        if collapsed:
            self._base = self._climbed_from
            self._climbing = False
            self._careful = True
        else:
            self._probes.hung(now)
        self._give_up(now)

    def _think(self, window: Window) -> None:
        """Learn from a window, and decide what the next one shall be."""
        now = window.now
        level = window.level
        latency = window.latency
        # The first windows weigh as in a plain mean.
        weight = max(PRESSED_WEIGHT, 1.0 / self._windows)
        self._pressure += weight * (window.refused - self._pressure)
        levels = self._levels
        change = levels.add(now, level, level / latency, window.weight)
        levels.read(now, self._base)
        if change is not Change.NONE:
            self._climbing = change is Change.FASTER
            self._careful = False
            self._probes.changed(now if change is Change.SLOWER else now + 3.0 * latency)
        probed, higher = self._probing, self._higher
        self._probing = self._higher = False
        self._steady = True
        if change is not Change.NONE:
            # The table is gone, and with it what a probe was to be compared with. One window more
            # before anything is done: the one that raised the alarm was an extreme one.
            self._pinned = self._pinned and not probed
            self._move(now, "changed")
        elif window.lost > LOST:
            self._lose(now, window.lost)
        elif higher:
            self._looked_higher(now, level, latency)
        elif probed:
            self._probed(now, level, latency)
        elif self._is_full(window) and self._pressure > PRESSED:
            self._pinned = self._pinned or level >= 0.85 * self.limit / self._occupied
            self._full(now, latency, probed=False)
        else:
            # Who holds places without using the service looks like a queue; those who ended show
            # whether there is one.
            self._free(now, level, min(latency, window.told), blocked=window.blocked > 0)

    def _is_full(self, window: Window) -> bool:
        asked = window.completed / (1.0 - window.refused)
        return (
            window.blocked > FULL_BLOCKED * asked
            or window.level * self._occupied > FULL_USED * self.limit
        )

    def _lost_most(self, now: float) -> None:
        self._probing = self._higher = False
        self._steady = True
        self._lose(now, self._lost / (self._lost + self._completed))

    def _lose(self, now: float, share: float) -> None:
        """Losses act by themselves: half of their share off the limit, at most once a window."""
        self._climbing = False
        self._base *= 1.0 - 0.5 * share
        self._move(now, "losses")

    # Decisions.

    def _free(self, now: float, level: float, latency: float, *, blocked: bool) -> None:
        """The limit was not full: hold, unless latency proves a queue or someone was blocked."""
        levels = self._levels
        stretch = latency / levels.unloaded
        reason = "free"
        stands = False
        if not levels.sure:
            flat = levels.flat
            known = levels.flat_weight > LOWEST_KNOWN
            stands = known and flat is not None and level > 1.5 * flat and stretch > 2.0
            if flat is not None and stands and self._stood:
                self._base = min(self._base, max(1.3 * flat, FALL * level))
                self._pinned = True
                reason = "queueing"
        elif blocked and stretch < 1.3:
            rise = min(self._target(), 1.2 * self._base)
            self._base = max(self._base * 1.05 + 0.2, rise)
            reason = "peaks"
        elif not blocked and stretch > 1.5 and level > 1.3 * self._target():
            stands = levels.low_weight > KNOWN
            if stands and self._stood:
                self._base = min(self._base, max(self._target(), FALL * level))
                reason = "queueing"
        self._stood = stands
        self._move(now, reason)

    def _full(self, now: float, latency: float, *, probed: bool) -> None:
        """The limit was full: go to the knee, or find out where it is."""
        levels = self._levels
        if not levels.sure:
            if levels.flat is not None:
                self._base = min(self._base, levels.flat)
                self._pinned = True
            probe = int((LOOK_LOWER_STILL if probed else self._look_lower()) * self._base)
            if self._pinned and self._probe(now, probe, WINDOW_EARLY):
                return
            self._move(now, "unknown")
            return
        base = self._base
        elastic, clearly = self._elastic()
        if not elastic and not probed:
            self._climbing = False
        target = self._target()
        if target > base:
            self._rises += 1
            reason = "rising"
            if elastic and self._climbing:
                doubles = clearly and not self._careful
                target = max(target, (CLIMB if doubles else CLIMB_CAREFUL) * base)
                reason = "climbing"
            target = min(target, (CLIMB if self._climbing else RISE) * base)
            if target < (1.0 + LARGE) * base:
                target = base + min(1.0, 0.3 + 0.15 * self._rises) * (target - base)
        else:
            self._rises = 0
            reason = "falling"
            target = max(target, FALL * base)
            if target > (1.0 - LARGE) * base:
                target = base + DAMPING * (target - base)
        self._base = target
        climbs = reason == "climbing"
        if not probed and not (elastic and self._climbing) and now >= self._probes.due:
            probe = int(PROBE * knee.of(self._base, queued=self._queued) + 0.5)
            if self._probe(now, probe, WINDOW):
                return
        unseen = levels.high_weight < KNOWN and now >= self._next_higher
        if unseen and not probed and not self._climbing:
            self._look_higher(now)
            return
        self._move(now, reason)
        if climbs and self._goal:
            self._climbed_from = base
            self._expect(now, min(levels.rate, base / latency))

    def _look_lower(self) -> float:
        """The share of the limit that is looked at while the unloaded latency is not known."""
        if self._first >= GLIMPSE:
            likely = self._levels.rate * self._first_spent / self._first
            share = GLIMPSE_SHARE * likely / self._base
            if share < GLIMPSE_BELOW:
                return max(share, GLIMPSE_LEAST)
        return LOOK_LOWER

    def _look_higher(self, now: float) -> None:
        """Nothing is known above: see for one window whether throughput still rises there."""
        self._bound()
        self._next_higher = now + max(HIGHER_PAUSE, HIGHER_PAUSE_LATENCIES * self._latency)
        higher = max(HIGHER * self._base, self._base + 1.0)
        wanted = self._whole(min(higher, self._ceiling()))
        if wanted > self.limit:
            self._probing = self._higher = True
            self._steady = False
            self._probe_rate = self._levels.rate
            self._change(now, wanted, SETTLE)
            self._need = WINDOW
            self._reason = "looking higher"
        else:
            self._move(now, "rising")

    def _looked_higher(self, now: float, level: float, latency: float) -> None:
        gain = level / latency / self._probe_rate
        if gain > (level / self._base) ** HIGHER_GAIN:
            self._base = level
            self._climbing = self._careful = True
            self._move(now, "climbing")
        else:
            self._move(now, "rising")

    def _elastic(self, *, doubt: float = 1.0) -> tuple[bool, bool]:
        """Is latency at the present level as good as unloaded: within a doubt, and clearly?"""
        levels = self._levels
        if levels.latency_weight == 0.0:
            return False, False
        excess = levels.latency / levels.unloaded - 1.0
        error = doubt / sqrt(levels.latency_weight)
        # How far it would be above if the present level were the right one.
        expected = self._base / knee.of(self._base, queued=self._queued) - 1.0
        return (
            excess < min(ELASTIC, 0.5 * expected) + error,
            excess < min(ELASTIC_CLEARLY, 0.3 * expected) + 0.5 * error,
        )

    def _probe(self, now: float, level: int, need: int) -> bool:
        """Go to `level` for a window, if that is lower and allowed."""
        level = max(level, 1)
        wanted = self._whole(float(level))
        if wanted >= self.limit or now < self._probes.barred:
            return False
        self._bound()
        self._probing = True
        self._steady = False
        self._probes.begin(now, self._levels.unloaded if self._levels.sure else 0.0)
        self._change(now, wanted, SETTLE)
        self._expect(now)
        self._need = need
        self._reason = "probing"
        return True

    def _probed(self, now: float, level: float, latency: float) -> None:
        """A probe has ended; compare it with what is known of higher levels."""
        levels = self._levels
        self._probes.heard()
        if not levels.sure:
            # Nothing was lost by going there, so that is where to stay and look further down.
            self._base = min(self._base, max(level, 1.0))
            self._full(now, latency, probed=True)
            return
        self._probes.measured(
            now,
            latency,
            level / latency / levels.rate,
            unloaded=levels.unloaded,
            weight=levels.low_weight,
            knee=levels.rate * levels.unloaded,
        )
        if self._elastic(doubt=0.0)[1]:
            self._climbing = True
        self._full(now, latency, probed=True)

    # Numbers.

    def _target(self) -> float:
        """The level wanted: the knee and its headroom, within the objective if there is one."""
        levels = self._levels
        target = knee.above(levels.rate * levels.unloaded, queued=self._queued)
        if levels.alone:
            target = min(target, ALONE)
        return min(target, self._ceiling())

    def _ceiling(self) -> float:
        """The level at which the mean latency reaches the objective, if it can be met at all.

        The throughput known is that of the present level, and at a low one it is low because of
        that: while the objective is met there is room for some more.
        """
        levels = self._levels
        target = self.latency_target
        if target is None or not 0.0 < levels.unloaded < target:
            return inf
        ceiling = target * levels.rate
        if 0.0 < levels.latency < target:
            ceiling = max(ceiling, self._base + max(1.0, LARGE * self._base))
        return ceiling

    def _bound(self) -> None:
        ceiling = min(self._ceiling(), float(self.max))
        self._base = max(min(self._base, ceiling), float(self.min))

    # Movement.

    def _move(self, now: float, reason: str) -> None:
        """Go to the wanted level, and count anew."""
        self._bound()
        self._reason = reason
        wanted = self._whole(self._base)
        step = abs(log(wanted / self.limit)) if wanted != self.limit else 0.0
        if step > LARGE:
            settle = SETTLE_CLIMBING if self._climbing and wanted > self.limit else SETTLE
        else:
            settle = SETTLE_SMALL if step > SMALL else 0.0
        self._change(now, wanted, settle)
        early = not self._levels.sure and (self._windows < EARLY or self._pressure > PRESSED)
        self._need = WINDOW_EARLY if early else WINDOW

    def explain(self) -> dict[str, Any]:
        """Say the limit and all that it rests on.

        Returns:
            `reason` names the last decision: start, free, peaks, queueing, unknown, probing,
            climbing, rising, falling, losses, changed. `knee` = `throughput` x
            `unloaded_latency`; `stretch` is latency over the unloaded one. Latencies in
            seconds, throughput in requests a second, None while unknown.
        """
        levels = self._levels
        known = self._windows > 0
        # Read once: whoever explains from another thread may see a window half concluded.
        unloaded = levels.unloaded
        return {
            "algorithm": "adaptive",
            "limit": self.limit,
            "min": self.min,
            "max": self.max,
            "reason": self._reason,
            "wanted": self._base,
            "knee": levels.rate * unloaded if known else None,
            "throughput": levels.rate if known else None,
            "unloaded_latency": unloaded if known else None,
            "unloaded_is_known": levels.sure,
            "unloaded_samples": levels.low_weight,
            "latency": self._latency if known else None,
            "stretch": self._latency / unloaded if known and unloaded > 0.0 else None,
            "places_per_running": self._occupied,
            "climbing": self._climbing,
            "probing": self._probing,
            "probes": self._probes.count,
            "next_probe": self._probes.due if isfinite(self._probes.due) else None,
            "changes": levels.changes,
            "dispersion": levels.dispersion,
            "windows": self._windows,
            "headroom": knee.room(queued=self._queued),
            "latency_target": self.latency_target,
            "latency_target_attainable": (
                None
                if self.latency_target is None or not known
                else levels.unloaded < self.latency_target
            ),
        }
