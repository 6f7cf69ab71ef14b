"""Boki from outside: call functions and use LogBooks of a running system over HTTP.

::

    async with Client("http://127.0.0.1:8080") as client:
        answer = await client.invoke("greet", "Ada")
        await client.logbook("guests").append(b"Ada", ["guest:Ada"])

    with BlockingClient("http://127.0.0.1:8080") as client:          # the same methods, for blocking code, any thread
        client.invoke("greet", "Ada")

A client is one reader in the sense of the log's promises: it reads what it has written, and never goes back, across all
its books and calls. `client.position` hands that on to another client.
Errors are those of `boki.errors`, the same as inside of functions. `Unavailable` says that nothing was sent;
`ConnectionLost` and `DeadlineExceeded` that it may have been carried out: repeat it under a `key`.
"""

from boki.api.http.exchange import Invocation, Invocations
from boki.client.blocking_client import BlockingClient
from boki.client.client import Client

__all__ = ["BlockingClient", "Client", "Invocation", "Invocations"]
