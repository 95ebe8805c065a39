"""Where is the user's app? Import it, or say in one line why not."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, cast

# Layers of middleware that are looked through: more than anybody stacks, and an end to circles.
_LAYERS = 64


class LoadError(Exception):
    """The app cannot be had.

    Attributes:
        details: The user's own traceback when their code raised, else empty.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def load_app(spec: str, app_dir: Path, *, factory: bool = False) -> Any:
    """Import the ASGI app that `spec` names.

    Args:
        spec: ``MODULE:APP``; APP may be dotted.
        app_dir: Searched first for the module.
        factory: Whether APP is a function without arguments that returns the app.

    Raises:
        LoadError: It does not import, does not exist, or is no ASGI app.
    """
    target = _load(spec, app_dir)
    if factory:
        target = _make(spec, target)
    _check_is_asgi(spec, target, factory=factory)
    return target


def brings_admission(app: Any) -> bool:
    """Whether an app is, or has around it or in its list of middleware, a layer of ours.

    Looks through `app.app`, as middleware keeps what it wraps, and `user_middleware`, as Starlette
    and FastAPI do. Apps that are mounted inside are not searched.
    """
    from loadgate.integrations.asgi import AdmissionMiddleware

    for _ in range(_LAYERS):
        if isinstance(app, AdmissionMiddleware):
            return True
        listed = getattr(app, "user_middleware", None)
        if isinstance(listed, list | tuple):
            for one in cast("Sequence[object]", listed):
                kind = getattr(one, "cls", None)
                if isinstance(kind, type) and issubclass(kind, AdmissionMiddleware):
                    return True
        app = getattr(app, "app", None)
    return False


def load_function(spec: str, app_dir: Path) -> Callable[..., Any]:
    """Import the function that `spec` (``MODULE:FUNCTION``) names.

    Raises:
        LoadError: It does not import, does not exist, or cannot be called.
    """
    target: Callable[..., Any] = _load(spec, app_dir)
    if not callable(target):
        raise LoadError(f"{spec!r} is a {type(target).__name__}, not a function")
    return target


def _load(spec: str, app_dir: Path) -> Any:
    module_name, separator, attribute = spec.partition(":")
    if not (separator and module_name and attribute):
        raise LoadError(f"{spec!r} is incomplete: write MODULE:NAME, for example main:app")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise LoadError(f"{module_name!r} is a file: write the module, {dotted}:{attribute}")
    if not app_dir.is_dir():
        raise LoadError(f"--app-dir {str(app_dir)!r} is not a directory")
    directory = str(app_dir.resolve())
    if sys.path[:1] != [directory]:
        sys.path.insert(0, directory)
    return _attribute(_import(module_name, app_dir), module_name, attribute)


def _import(name: str, app_dir: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Of `shop.main` either part may be what is missing; anything else is theirs.
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise LoadError(
                f"there is no module {error.name!r} in {str(app_dir.resolve())!r} or on the "
                "import path (--app-dir says where to look)"
            ) from None
        raise _theirs(f"{name!r} does not import: it needs {error.name!r}", error) from error
    except SystemExit as error:
        raise _theirs(f"{name!r} ends the process when it is imported", error) from error
    except Exception as error:
        raise _theirs(f"{name!r} does not import: {_one_line(error)}", error) from error


def _attribute(module: ModuleType, module_name: str, attribute: str) -> Any:
    target: Any = module
    for part in attribute.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            public = [name for name in vars(module) if not name.startswith("_")]
            near = get_close_matches(attribute, public, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise LoadError(f"module {module_name!r} has no {attribute!r}{hint}") from None
    return target


def _make(spec: str, factory: Any) -> Any:
    if not callable(factory):
        raise LoadError(f"{spec!r} is a {type(factory).__name__}, so it cannot be a --factory")
    try:
        made = factory()
    except Exception as error:
        raise _theirs(f"the factory {spec!r} failed: {_one_line(error)}", error) from error
    if inspect.iscoroutine(made):
        made.close()
        raise LoadError(f"the factory {spec!r} is async; it must return the app itself")
    return made


def _check_is_asgi(spec: str, app: Any, *, factory: bool) -> None:
    what = f"what {spec!r} returned" if factory else repr(spec)
    if not callable(app):
        raise LoadError(f"{what} is no ASGI app: it is a {type(app).__name__}, not callable")
    if inspect.isclass(app):
        raise LoadError(
            f"{what} is the class {app.__name__!r}, not an ASGI app: name an instance, or a "
            "function that makes one together with --factory"
        )
    if _takes(app, 3):
        return
    if _takes(app, 2):
        raise LoadError(f"{what} is no ASGI app: it takes two arguments as WSGI apps do")
    if _takes(app, 0) and not factory:
        raise LoadError(
            f"{what} is no ASGI app: it takes no arguments; if it makes the app, add --factory"
        )
    raise LoadError(f"{what} is no ASGI app: it does not take (scope, receive, send)")


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        return count == 3  # a builtin that tells nothing of itself gets the benefit of the doubt
    return True


def _theirs(message: str, error: BaseException) -> LoadError:
    """The traceback from the first line of the user's on: ours would only be in the way."""
    steps: TracebackType | None = error.__traceback__
    while steps is not None and _is_ours(steps.tb_frame.f_code.co_filename):
        steps = steps.tb_next
    # limit=None keeps all of it; a SyntaxError has no frame of theirs but says where it is.
    lines = traceback.TracebackException(type(error), error, steps).format(chain=steps is not None)
    return LoadError(message, "".join(lines))


def _is_ours(filename: str) -> bool:
    return filename == __file__ or "importlib" in filename


def _one_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
