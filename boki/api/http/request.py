"""`ctx.request`: the HTTP request that a call came by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from boki.protocol.calls import RequestHead


class Values(Mapping[str, str]):
    """Names with their values, of which a name may have several; `values[name]` is the first one."""

    __slots__ = ("_fold", "_values")

    def __init__(self, pairs: tuple[tuple[str, str], ...], *, ignores_case: bool = False) -> None:
        self._fold = ignores_case
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name.lower() if ignores_case else name, []).append(value)

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower() if self._fold else name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def all(self, name: str) -> list[str]:
        """Every value of that name, in order; empty if there is none."""
        return list(self._values.get(name.lower() if self._fold else name, ()))

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Every name with each of its values."""
        return tuple((name, value) for name, values in self._values.items() for value in values)

    def __repr__(self) -> str:
        return f"Values({self._values!r})"


class Request:
    """What an HTTP caller has sent besides the payload. `Authorization` and `Proxy-Authorization` are not handed on."""

    __slots__ = ("client", "headers", "method", "path", "path_values", "query", "route")

    method: str
    path: str
    """Decoded, without the query."""
    query: Values
    headers: Values
    """The case of names does not matter."""
    client: str
    """The address that the connection comes from, which may be a proxy's; "" if it cannot be told."""
    route: str
    """The function's route that it came by, such as "GET /u/{code}"; "" if it was called as `/function/NAME`."""
    path_values: Values
    """What stands in the path for the variables of the route."""

    def __init__(
        self,
        method: str = "POST",
        path: str = "/",
        *,
        query: Mapping[str, str] | tuple[tuple[str, str], ...] = (),
        headers: Mapping[str, str] | tuple[tuple[str, str], ...] = (),
        client: str = "",
        route: str = "",
        path_values: Mapping[str, str] | tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.method = method
        self.path = path
        self.query = Values(_pairs(query))
        self.headers = Values(_pairs(headers), ignores_case=True)
        self.client = client
        self.route = route
        self.path_values = Values(_pairs(path_values))

    def head(self) -> RequestHead:
        """The request as it travels."""
        return RequestHead(
            self.method,
            self.path,
            self.query.pairs,
            self.headers.pairs,
            self.client,
            self.route,
            self.path_values.pairs,
        )

    @staticmethod
    def of(head: RequestHead | None) -> Request | None:
        """The request as a function sees it; None if it was not called over HTTP."""
        if head is None:
            return None
        return Request(
            head.method,
            head.path,
            query=head.query,
            headers=head.headers,
            client=head.client,
            route=head.route,
            path_values=head.path_values,
        )


def _pairs(values: Mapping[str, str] | tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple(values.items()) if isinstance(values, Mapping) else values
