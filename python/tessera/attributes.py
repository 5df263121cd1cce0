# SPDX-License-Identifier: Apache-2.0
"""Attributes of the package's classes."""
import difflib


class FixedAttributes:
    """Refuses to set attributes that the class does not have, which would have
    no effect. Classes derived from one that says `_attributes` may have more.

    _attributes: those of objects of exactly this class, besides what the class
        has. (Names that begin with "_" are free.)
    """

    _attributes = ()
    _other_names = {}  # of an attribute in other libraries, and what it is here

    def __setattr__(self, name, value):
        kind = type(self)
        if not name.startswith("_") and "_attributes" in vars(kind) and (
                name not in kind._attributes and not hasattr(kind, name)):
            raise AttributeError(_missing(kind, name))
        super().__setattr__(name, value)


def _missing(kind, name):
    public = [*kind._attributes, *(
        one for one in dir(kind) if not one.startswith("_"))]
    found = kind._other_names.get(name) or next(iter(
        difflib.get_close_matches(name, public, n=1, cutoff=0.7)), None)
    remedy = f"did you mean {found!r}?" if found else \
        "it would have no effect. Keep it in a variable of your own."
    return f"{kind.__name__} has no attribute {name!r}; {remedy}"
