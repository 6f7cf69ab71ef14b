"""Commands about one thing of a LogBook, such as a queue or an object: `boki GROUP VERB BOOK THING ...`.

A library writes each command as an `async` function of the thing and of what is special about the command. The
arguments BOOK and THING, `--url` and `--token`, the connection and its end are the same for all, and stand here::

    app = ThingCommands("Push to queues.", name=Name, opened=lambda logbook, name: Queue(logbook, name))

    @app.of_thing("boki queue push shop orders tea")
    async def push(queue: Queue[Any], data: Annotated[str, typer.Argument(help="The message.")]) -> None: ...

A command of `of_book` is about all of them, so it has no THING.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from inspect import Parameter
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from boki.cli.connection import Token, Url, connect_async
from boki.cli.help import Commands, examples

Work = TypeVar("Work", bound=Callable[..., Coroutine[Any, Any, None]])

Book = Annotated[str, typer.Argument(help="The LogBook.", show_default=False)]


class ThingCommands(Commands):
    """`name` annotates the argument that names the thing. `opened` makes the thing of a LogBook, its name, and the
    values of `shared`: options of some commands that say which thing is meant, each with its default.
    """

    def __init__(
        self, summary: str, *, name: Any, opened: Callable[..., Any], shared: dict[str, tuple[Any, Any]] | None = None
    ) -> None:
        super().__init__(help=summary)
        self._name = name
        self._opened = opened
        self._shared = shared or {}

    def of_thing(
        self, *lines: str, name: str = "", shared: tuple[str, ...] = (), named: Any = None
    ) -> Callable[[Work], Work]:
        """Add the decorated function as a command. `lines` are its examples, `shared` names the options it has, and
        `named` annotates the argument that names the thing, if not as in all others.
        """
        return self._adding(lines, name, {option: self._shared[option] for option in shared}, named or self._name)

    def of_book(self, *lines: str, name: str = "") -> Callable[[Work], Work]:
        """Add the decorated function as a command about the things of a book: its own is the nameless one."""
        return self._adding(lines, name, {}, None)

    def _adding(
        self, lines: tuple[str, ...], verb: str, options: dict[str, tuple[Any, Any]], named: Any
    ) -> Callable[[Work], Work]:
        def add(work: Work) -> Work:
            def command(book: str, url: str, token: str, thing: str = "", **given: Any) -> None:
                chosen = {option: given.pop(option) for option in options}

                async def run() -> None:
                    async with connect_async(url, token) as client:
                        await work(self._opened(client.logbook(book), thing, **chosen), **given)

                asyncio.run(run())

            first, *own = inspect.signature(work).parameters.values()
            hints = _hints_without(work, first.name)
            parameters = [_parameter("book", Book)]
            parameters += [] if named is None else [_parameter("thing", named)]
            parameters += [_parameter(one.name, hints[one.name], one.default) for one in own]
            parameters += [_parameter(option, *kind) for option, kind in options.items()]
            parameters += [_parameter("url", Url, ""), _parameter("token", Token, "")]
            command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
            command.__annotations__ = {one.name: one.annotation for one in parameters}
            command.__doc__ = work.__doc__
            self.command(verb or work.__name__.replace("_", "-"))(examples(*lines)(command))
            return work

        return add


def _parameter(name: str, annotation: Any, default: Any = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _hints_without(work: Callable[..., object], first: str) -> dict[str, Any]:
    """The types of its parameters but the first: that of the thing is known to type checkers only."""

    def described() -> None: ...

    kept = {name: kind for name, kind in work.__annotations__.items() if name not in (first, "return")}
    described.__annotations__ = kept
    return get_type_hints(described, globalns=work.__globals__, include_extras=True)
