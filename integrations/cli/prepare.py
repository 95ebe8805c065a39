"""What do the options of ``loadgate serve`` make? Everything that is served, bound and loaded."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

from loadgate.errors import UsageError
from loadgate.integrations.classes import PathClasses
from loadgate.integrations.cli.bind import BindError, bind, clash, overlap
from loadgate.integrations.cli.fits import Fit
from loadgate.integrations.cli.load import LoadError, brings_admission, load_app, load_function
from loadgate.integrations.cli.options import Backend, Door, Options
from loadgate.integrations.cli.policyfile import PolicyFileError
from loadgate.integrations.cli.say import FAILED, fail
from loadgate.integrations.cli.serve import Process, Service
from loadgate.integrations.cli.words import HOLDS_ALL, one_may_hold_all, told
from loadgate.integrations.cli.workers import Parent, Worker, multiplied, operators_address
from loadgate.integrations.exempt import DEFAULT_PATHS, Exemptions
from loadgate.integrations.hypercorn import StartupError
from loadgate.integrations.identity import Address, KeyHasher
from loadgate.integrations.witness import Witness
from loadgate.policy import Policy
from loadgate.shared import resolve

log = logging.getLogger("loadgate.serve")

# Seconds beyond the graceful timeout after which workers that do not end are killed; they give
# themselves less.
_PATIENCE = 15.0

_DOORS: dict[Door, Literal["answer", "drop"] | None] = {
    Door.ANSWER: "answer",
    Door.DROP: "drop",
    Door.OFF: None,
}


def run(options: Options) -> int:
    """Serve until a signal ends it.

    Returns:
        The exit code.

    Raises:
        SystemExit: It cannot be served; a line on stderr says why.
    """
    loop = _loop(options.backend)
    with ExitStack() as sockets, _one_line():
        if loop is Backend.TRIO and options.door is Door.DROP:
            raise ValueError(
                "--door drop means nothing with --backend trio: there is no door on trio"
            )
        fit = Fit(identified=options.identify is not None, priority=options.priority)
        rules, classes = fit.read(options.policy)
        worker = Worker.of_this_process()
        if worker is None:
            if options.bind == options.metrics_bind and not options.bind.endswith(":0"):
                raise BindError(clash(options.bind, options.metrics_bind))
            if options.workers > 1:
                return _run_workers(options, rules)
        process = Process(_service(options, loop, fit, rules, classes, worker, sockets))
        sockets.pop_all()  # from here on Hypercorn closes them
    try:
        return process.run(loop.value)
    except StartupError as error:
        fail(f"{options.target!r} did not start: {error}", FAILED)


@contextmanager
def _one_line() -> Generator[None]:
    """Turn what a user can have got wrong into one line and exit code 2."""
    try:
        yield
    except LoadError as error:
        sys.stderr.write(error.details)
        fail(str(error))
    except (PolicyFileError, BindError, UsageError, ValueError) as error:
        fail(str(error))


def _run_workers(options: Options, rules: Policy) -> int:
    _log_to_stderr()
    for line in multiplied(rules, options.workers):
        log.warning("%s", line)
    patience = options.graceful_timeout + _PATIENCE
    return Parent(options.workers, bind(options.bind), patience).run(sys.argv[1:])


def _service(
    options: Options,
    loop: Backend,
    fit: Fit,
    rules: Policy,
    classes: PathClasses | None,
    worker: Worker | None,
    sockets: ExitStack,
) -> Service:
    """Load the app and bind the sockets, which `sockets` closes if anything fails."""
    app = load_app(options.target, options.app_dir, factory=options.factory)
    witness = Witness(
        logs=options.log_refusals,
        explained=True,
        top=options.top_clients,
        hasher=_hasher(rules, options.client_secret),
    )
    layer = _layer(options, rules) | {"log": witness}
    if classes is not None:
        layer["priority"] = classes
    listener = sockets.enter_context(bind(options.bind) if worker is None else worker.socket())
    ops_listener = None
    metrics_bind = options.metrics_bind
    if worker is not None:
        metrics_bind = operators_address(metrics_bind, worker.index)
    if metrics_bind != "none":
        ops_listener = sockets.enter_context(bind(metrics_bind))
        if overlap(listener, ops_listener):
            raise BindError(clash(options.bind, metrics_bind))
    _log_to_stderr()
    if worker is None or not worker.index:
        for line in _cautions(options, loop, app, rules):
            log.warning("%s", line)
    return Service(
        name=options.target,
        app=app,
        policy=rules,
        policy_file=options.policy,
        fit=fit,
        listener=listener,
        ops_listener=ops_listener,
        layer=layer,
        graceful_timeout=options.graceful_timeout,
        access_log=options.access_log,
        witness=witness,
        live_token=options.live_token,
        door=_DOORS[options.door] if loop is not Backend.TRIO else None,
        worker=worker,
    )


def _cautions(options: Options, loop: Backend, app: Any, rules: Policy) -> list[str]:
    """What can be served but is hardly meant."""
    found: list[str] = []
    if brings_admission(app):
        found.append(
            "the app brings its own AdmissionMiddleware: every request is decided twice; "
            "take it out of the app, or run the app under another server"
        )
    if loop is Backend.TRIO and options.door is not Door.OFF:
        found.append(
            "there is no door on trio: far above capacity a refusal costs as much as an answer; "
            "--backend uvloop has one, --door off says that none is wanted"
        )
    if one_may_hold_all(rules):
        found.append(HOLDS_ALL)
    return found


def _loop(backend: Backend | None) -> Backend:
    if backend is None:
        return Backend.UVLOOP if importlib.util.find_spec("uvloop") else Backend.ASYNCIO
    if backend is not Backend.ASYNCIO and importlib.util.find_spec(backend) is None:
        fail(f"--backend {backend} needs {backend}, which is not installed; run: pip install "
             f"{backend}")  # fmt: skip
    return backend


def _layer(options: Options, rules: Policy) -> dict[str, Any]:
    """What the options say to the layer, as its keyword arguments."""
    layer: dict[str, Any] = {
        "identify": _identify(options, rules),
        # Hypercorn loses an HTTP/2 connection whose upload outlives the answer.
        "finish_uploads": True,
        "body_timeout": options.body_timeout or None,
    }
    if options.exempt:
        layer["exempt"] = (*DEFAULT_PATHS, *options.exempt)
        try:
            Exemptions(options.exempt)
        except ValueError as error:
            raise ValueError(f"--{error}") from None
    return layer


def _identify(options: Options, rules: Policy) -> Any:
    """Who is asking."""
    trusted = list(options.trusted_proxy)
    if options.identify is not None:
        if trusted:
            raise ValueError("--identify replaces --trusted-proxy: give one of them")
        return load_function(options.identify, options.app_dir)
    try:
        return Address(
            trusted=trusted,
            header=options.proxy_header.value if trusted else None,
            keys=told(rules),
        )
    except ValueError as error:
        raise ValueError(str(error).replace("trusted:", "--trusted-proxy:", 1)) from None


def _hasher(rules: Policy, secret: str) -> KeyHasher | None:
    """What makes the hashes of clients, None for a secret that this process draws."""
    if not secret and rules.store is not None:
        secret = resolve(rules.store.secret, "store.secret")
    try:
        return KeyHasher(secret.encode()) if secret else None
    except ValueError as error:
        raise ValueError(f"--client-{error}") from None


def _log_to_stderr() -> None:
    """Show our own log unless the app has set up logging while it was imported."""
    if not logging.getLogger().handlers:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("loadgate").setLevel(logging.INFO)
