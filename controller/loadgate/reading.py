"""What do the plain data of a file mean? A struct of settings, or the place of what is wrong.

msgspec does the typing. Added is what it leaves open: the exact place and value of a mistake, the
nearest name of an unknown setting, and that nothing which can be in plain data raises anything
but `PolicyError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, TypeGuard, TypeVar, get_args, get_origin

import msgspec

from loadgate.errors import PolicyError
from loadgate.limits.settings import shown

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

# How msgspec says where: "... - at `$.rates[0].burst`"; `[...]` is any name of a mapping.
_PLACE = re.compile(r"(?P<what>.*) - at `\$\.?(?P<path>[^`]*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`$", re.DOTALL)

# The deepest setting there is, rates[0].match.tier[0], stands at 5.
_DEEPEST = 8


def read(mapping: Mapping[str, Any], kind: type[_Struct]) -> _Struct:
    """Make a `kind` of plain data.

    Raises:
        PolicyError: Something is wrong; its `path` says where.
    """
    if not is_mapping(mapping):
        raise PolicyError("", f"{shown(mapping)} does not map names to settings")
    _check_plain(mapping, "", 0)
    try:
        return msgspec.convert(dict(mapping), kind)
    except msgspec.ValidationError as error:
        place = _PLACE.match(str(error))
        path, what = (place["path"], place["what"]) if place else ("", str(error))
        if isinstance(error.__cause__, PolicyError):
            raise error.__cause__.under(path) from None
        if unknown := _UNKNOWN.match(what):
            name = unknown["name"]
            known = [field.name for field in msgspec.structs.fields(_kind_at(kind, path))]
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise PolicyError(name, f"unknown setting; {hint}").under(path) from None
        path, value = _found(mapping, kind, path)
        if wanted := _wanted(kind, path):
            raise PolicyError(path, f"{wanted}, not {shown(value)}") from None
        raise PolicyError(path, f"{what}; it is {shown(value)}") from None


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Whether it maps anything to anything."""
    return isinstance(value, Mapping)


def is_list(value: object) -> TypeGuard[Iterable[Any]]:
    """Whether it holds one value after another, and is not text or a mapping."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _check_plain(value: Any, path: str, depth: int) -> None:
    """Refuse what no file could hold and what would stop the checks that come after this."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise PolicyError(path, f"{shown(value)} is not Unicode text") from None
        return
    if depth == _DEEPEST:
        raise PolicyError(path, f"{shown(value)} is nested too deeply for a policy")
    if is_mapping(value):
        for name, each in value.items():
            if not isinstance(name, str):
                raise PolicyError(f"{path}[{shown(name)}]", "is not a name: names are text")
            _check_plain(name, path, depth)
            _check_plain(each, _inside(path, name), depth + 1)
    elif is_list(value) and isinstance(value, Sequence):
        for index, each in enumerate(value):
            _check_plain(each, f"{path}[{index}]", depth + 1)


def _kind_at(kind: type[msgspec.Struct], path: str) -> type[msgspec.Struct]:
    """The struct that describes the place `path`; parts do not have parts."""
    first = path.split(".")[0].split("[")[0]
    for field in msgspec.structs.fields(kind):
        if field.name == first:
            # As it is, or one of `Part | None` or `Sequence[Part]`.
            for part in (field.type, *get_args(field.type)):
                if isinstance(part, type) and issubclass(part, msgspec.Struct):
                    return part
    return kind


def _wanted(kind: type[msgspec.Struct], path: str) -> str:
    """What the setting at `path` must be in the words of its description, if it has one."""
    for field in msgspec.structs.fields(_kind_at(kind, path)):
        if field.name == path.rpartition(".")[2] and get_origin(field.type) is Annotated:
            for said in field.type.__metadata__:
                if isinstance(said, msgspec.Meta) and said.description:
                    return said.description
    return ""


def _found(mapping: Any, kind: type[msgspec.Struct], path: str) -> tuple[str, Any]:
    """Where exactly msgspec's `path` is, and what the operator wrote there."""
    found: Any = mapping
    place = field = ""
    for step in re.findall(r"\[\.\.\.\]|[^.\[\]]+", path):
        if step == "[...]":
            step = _culprit(found, _kind_at(kind, place), field)
        if is_mapping(found):
            found, place, field = found[step], _inside(place, step), step
        else:
            found, place = found[int(step)], f"{place}[{step}]"
    return place, found


def _culprit(found: Mapping[str, Any], kind: type[msgspec.Struct], field: str) -> str:
    """The first name in `found`, the value of `field`, whose value is of a wrong type."""
    expected = {each.name: each.type for each in msgspec.structs.fields(kind)}[field]
    for name, value in found.items():
        try:
            msgspec.convert({name: value}, expected)
        except msgspec.ValidationError:
            return name
    raise AssertionError(f"nothing in {field} is wrong")  # msgspec has just said that it is


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
