"""Hypothesis strategies for msgspec structs, made from their field types."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=20),
    bytes: st.binary(max_size=20),
    type(None): st.none(),
}


def of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type that msgspec can send."""
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(of, arguments))
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return st.lists(of(arguments[0]), max_size=2).map(tuple)
        return st.tuples(*map(of, arguments))
    if origin is dict:
        return st.dictionaries(*map(of, arguments), max_size=2)
    if issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    if dataclasses.is_dataclass(kind):
        kinds = typing.get_type_hints(kind)
        return st.builds(kind, **{field.name: of(kinds[field.name]) for field in dataclasses.fields(kind)})
    return st.deferred(
        lambda: st.builds(kind, **{field.name: of(field.type) for field in msgspec.structs.fields(kind)})
    )
