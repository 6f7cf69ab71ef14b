"""The example functions do what the demo says, on a log in memory."""

import asyncio
import importlib.util
from itertools import islice
from types import ModuleType

import msgspec

import boki.testing
from boki.demo.examples import functions_folder
from boki.demo.flights import flights as rows
from boki.demo.flights import table_path


def load_flights() -> ModuleType:
    spec = importlib.util.spec_from_file_location("flights", functions_folder() / "flights.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


flights = load_flights()
BATCH = list(islice(rows(table_path()), 300))


def test_each_flight_becomes_one_record_with_its_own_bytes_and_tags() -> None:
    """What the demo compares after the kill: the record is the row, in the columns' order."""

    async def run() -> None:
        async with boki.testing.context(book="flights") as ctx:
            seqnums = await flights.record_flights(ctx, msgspec.convert(BATCH, list[flights.Flight]))
            assert sorted(seqnums) == seqnums
            for seqnum, row in zip(seqnums, BATCH, strict=True):
                record = await ctx.logbook.get(seqnum)
                assert record.data == msgspec.json.encode(row)
                assert set(record.tags) == {
                    f"carrier:{row['carrier']}",
                    f"origin:{row['origin']}",
                    f"dest:{row['dest']}",
                }

    asyncio.run(run())


def test_delays_count_only_what_arrived() -> None:
    """A cancelled flight counts as a flight, not as one without delay; a tag without flights has no mean."""

    async def run() -> None:
        async with boki.testing.context(book="flights") as ctx:
            cancelled = BATCH[1] | {"carrier": "UA", "arr_delay": None}
            late = BATCH[1] | {"carrier": "UA", "arr_delay": 30}
            early = BATCH[1] | {"carrier": "UA", "arr_delay": -10}
            batch = msgspec.convert([cancelled, late, early], list[flights.Flight])
            await flights.record_flights(ctx, batch)
            assert await flights.arrival_delays(ctx, "carrier:UA") == flights.Delays(3, 2, 10.0)
            assert await flights.arrival_delays(ctx, "carrier:XX") == flights.Delays(0, 0, None)

    asyncio.run(run())


def test_a_flight_with_a_missing_column_is_refused() -> None:
    """What is sent is checked against the columns before the function starts."""
    row = {name: value for name, value in BATCH[0].items() if name != "origin"}
    try:
        msgspec.convert(row, flights.Flight)
    except msgspec.ValidationError as error:
        assert "origin" in str(error)
    else:
        raise AssertionError("accepted")
