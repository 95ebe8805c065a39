"""The services of `server_overload` behind the layer, for servers that are not ours."""

from __future__ import annotations

from bench import server_overload_apps
from bench.server_overload_arms import VITAL
from loadgate import Policy
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.integrations.classes import PathClasses

_CLASSES = PathClasses({VITAL: "critical"})

pool = AdmissionMiddleware(server_overload_apps.pool, Policy(), priority=_CLASSES)
cpu = AdmissionMiddleware(server_overload_apps.cpu, Policy(), priority=_CLASSES)
