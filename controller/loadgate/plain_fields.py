"""How is a field of a mutable struct set as quickly as one of a class with slots?

msgspec sets fields by a function of its own: one that is given something which the garbage
collector must know of makes the struct known to it, too. CPython has no quick way for a class that
sets its attributes by a function of its own. An admission sets five fields and a response five
more, at 17 ns each rather than 3.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def plain_fields(kind: type[S]) -> type[S]:
    """Let the fields of `kind`, a mutable struct, be set as those of any object.

    For structs that the collector never knows (`gc=False`), or knows from their first moment. A
    class that inherits from one sets its fields in msgspec's way, unless it is decorated as well.
    """
    # When the class is there, as msgspec sets its own function last; both, as they are one to C.
    for name in ("__setattr__", "__delattr__"):
        setattr(kind, name, getattr(object, name))
    return kind
