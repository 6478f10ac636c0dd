"""Reads docstrings for the reference as they are meant, for mkdocstrings (an extension of Griffe).

The reference shows what modules have in ``__all__`` (or, without one, define), and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import griffe

from aiokafka_lite import errors

# "::" announces code in plain text; to Markdown the indent says enough.
ANNOUNCED_CODE: Final = re.compile(r"(?m)(?:^([ ]*)::|(?<=[^:\s])::)[ ]*\n\n(?=[ ]*[ ]{4})")
CONSUMER: Final = "aiokafka_lite.consumer.consumer.AIOKafkaConsumer"
CONFIG: Final = "aiokafka_lite.consumer.config.ConsumerConfig.__init__"
# Of the methods that Python calls, those that say more than the language does.
CALLED_BY_SYNTAX: Final = ("__init__", "__aexit__")
ERRORS: Final = "aiokafka_lite.errors"


class Docstrings(griffe.Extension):
    """Changes what Griffe has read of the package."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: object) -> None:
        """Change the docstrings, and tell what takes running code to know."""
        if pkg.path != "aiokafka_lite":
            return
        modules = pkg.modules_collection
        tell_of_arguments(modules[f"{CONSUMER}.__init__"], modules[CONFIG])
        for each in objects_of(pkg):
            if each.docstring is not None:
                each.docstring.value = as_markdown(each.docstring.value)
            for name, member in [*each.members.items()]:
                is_special = name.startswith("__") and isinstance(member, griffe.Function)
                if is_special and name not in CALLED_BY_SYNTAX:
                    del each.members[name]
        # What is exported is a table there.
        modules[ERRORS].exports = list(vars(errors)["__all__"])


def objects_of(parent: griffe.Object) -> Iterator[griffe.Object]:
    """Yield everything that is written in a module or class, and itself."""
    yield parent
    for each in parent.members.values():
        if isinstance(each, griffe.Object):
            yield from objects_of(each)


def tell_of_arguments(init: griffe.Function, config: griffe.Function) -> None:
    """Show the consumer's constructor with the arguments that its config takes."""
    if config.docstring is None:
        raise LookupError(f"{CONFIG} has no docstring")
    init.parameters = config.parameters
    init.docstring = griffe.Docstring(
        config.docstring.value,
        parent=init,
        parser=config.docstring.parser,
        parser_options=config.docstring.parser_options,
    )


def as_markdown(docstring: str) -> str:
    """Return a docstring in which code is announced as in Markdown."""
    return ANNOUNCED_CODE.sub(lambda found: "" if found[1] is not None else ":\n\n", docstring)
