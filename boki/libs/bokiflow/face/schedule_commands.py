"""`boki flow schedule`: workflows that start by themselves."""

from __future__ import annotations

from typing import Annotated, Any, Final, get_args

import msgspec
import typer

from boki.cli.connection import AsJson, Token, Url
from boki.cli.help import Commands, examples
from boki.cli.terminal import content_of, print_json, print_table, results, say, time_cell, time_text
from boki.errors import InvalidArgument
from boki.libs.bokiflow.attributes import parse_attribute
from boki.libs.bokiflow.face.commands import Book, Name, app, check_reason
from boki.libs.bokiflow.face.requests import SCHEDULES, Flows
from boki.libs.bokiflow.face.schedules_http import utc
from boki.libs.bokiflow.schedules.spec import Overlap

schedule_app = Commands("Start workflows by a cron line or an interval.")
app.add_typer(schedule_app, name="schedule")

__all__ = ["app"]

_OVERLAPS: Final = "|".join(get_args(Overlap))

Id = Annotated[str, typer.Argument(metavar="ID", help="The schedule's id.", show_default=False)]
AtOverlap = Annotated[
    str, typer.Option("--overlap", metavar=_OVERLAPS, help="What to do if an earlier one runs; else as it was created.")
]


@schedule_app.command()
@examples(
    "boki flow schedule create report nightly --cron '30 2 * * *' --zone Asia/Tokyo",
    "boki flow schedule create poll ten '{\"site\": 3}' --every-s 600",
)
def create(
    name: Name,
    schedule_id: Id,
    payload: Annotated[
        str, typer.Argument(help="JSON or text, as it takes it; - reads it from stdin.", show_default=False)
    ] = "",
    cron: Annotated[str, typer.Option(help="Minute, hour, day, month, weekday; or @hourly, @daily, ...")] = "",
    every_s: Annotated[
        float | None, typer.Option(min=1, help="An interval in place of a cron line.", show_default=False)
    ] = None,
    offset_s: Annotated[float, typer.Option(min=0, help="So much behind the multiples of the interval.")] = 0,
    zone: Annotated[str, typer.Option(help="The time zone of the cron line.")] = "UTC",
    overlap: Annotated[str, typer.Option(metavar=_OVERLAPS, help="What to do if an earlier one runs.")] = "skip",
    catch_up_s: Annotated[
        float, typer.Option(min=0, help="Make up for ticks that were missed no longer ago; at least 10 seconds count.")
    ] = 3_600,
    jitter_s: Annotated[float, typer.Option(min=0, help="Start up to so much later than the tick.")] = 0,
    attribute: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An attribute of the workflows; may be repeated.")
    ] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Begin only when it is resumed.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Change the schedule if there is one of that id.")] = False,
    book: Book = "",
    url: Url = "",
    token: Token = "",
) -> None:
    """Have a workflow be started at each tick. The workflow of a tick has the id ID@TICK."""
    body: dict[str, Any] = {
        "cron": cron,
        "every_s": every_s or 0,
        "offset_s": offset_s,
        "zone": zone,
        "overlap": overlap,
        "catch_up_s": catch_up_s,
        "jitter_s": jitter_s,
        "attributes": dict(map(parse_attribute, attribute or [])),
        "is_paused": paused,
        "if_exists": "replace" if replace else "fail",
    }
    if payload:
        data = content_of(payload, f"boki flow schedule create {name} {schedule_id} ''", may_be_empty=False)
        try:
            body["payload"] = msgspec.json.decode(data)
        except msgspec.DecodeError:
            try:
                body["payload"] = data.decode()
            except UnicodeDecodeError:
                raise InvalidArgument("PAYLOAD is neither JSON nor text in UTF-8", field="PAYLOAD") from None
    with Flows(url, token, book, SCHEDULES) as flows:
        flows.post(name, schedule_id, body=msgspec.json.encode(body), content_type="application/json")
        seen = flows.get(name, schedule_id)
    next_us = seen.get("next_us")
    first = f"its next tick is {time_text(next_us[0])[:19]} UTC" if next_us else "it is paused"
    say(f"schedule {schedule_id} of {name}: {seen['when']}; {first}")


@schedule_app.command("list")
@examples("boki flow schedule list", "boki flow schedule list --workflow report")
def list_schedules(
    name: Annotated[str, typer.Option("--workflow", help="Only those of this workflow.")] = "",
    beginning: Annotated[str, typer.Option("--id", help="Only those whose ids begin so.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of schedules.")] = 100,
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """List the schedules."""
    found: list[dict[str, Any]] = []
    before = ""
    with Flows(url, token, "", SCHEDULES) as flows:
        while len(found) < limit:
            asked = {"workflow": name, "id": beginning, "before": before, "limit": min(100, limit - len(found))}
            page = flows.get(query=asked)
            found += page["schedules"]
            before = page.get("before", "")
            if not before:
                break
    if as_json:
        for one in found:
            print_json(one)
    elif found:
        rows = [(one["id"], one["workflow"], one["status"], one["when"], _next(one), _counts(one)) for one in found]
        print_table(["id", "workflow~", "state", "when~", "next (UTC)", "ticks…"], rows)
    else:
        say("no such schedules", "dim")


@schedule_app.command()
@examples("boki flow schedule show report nightly")
def show(
    name: Name, schedule_id: Id, book: Book = "", as_json: AsJson = False, url: Url = "", token: Token = ""
) -> None:
    """Print a schedule, its next ticks, and what it did lately."""
    with Flows(url, token, book, SCHEDULES) as flows:
        seen = flows.get(name, schedule_id)
    if as_json:
        print_json(seen)
        return
    spec = seen["spec"]
    rows = [
        ("schedule", f"{seen['id']} of {name}"),
        ("state", seen["status"] + (f": {seen['note']}" if seen.get("note") else "")),
        ("when", seen["when"]),
        ("overlap", spec["overlap"]),
        ("ticks", _counts(seen)),
        *(("next", f"{time_text(next_us)[:19]} UTC") for next_us in seen.get("next_us", ())),
        *(("running", flow_id) for flow_id in seen.get("running", ())),
        *(("queued", flow_id) for flow_id in seen.get("queued", ())),
        *(
            ("recent", f"{time_text(one['at_us'])[:19]} {one['verdict']} {one['key']}")
            for one in seen.get("recent", ())
        ),
    ]
    width = max(len(title) for title, _ in rows)
    for at, (title, value) in enumerate(rows):
        shown = title if not at or rows[at - 1][0] != title else ""
        results().print(f"{shown:<{width}}  {value}", markup=False, soft_wrap=True)


@schedule_app.command()
@examples("boki flow schedule pause report nightly --reason 'the database moves'")
def pause(
    name: Name,
    schedule_id: Id,
    reason: Annotated[str, typer.Option("--reason", help="Why, for people who look at it.")] = "",
    book: Book = "",
    url: Url = "",
    token: Token = "",
) -> None:
    """Let ticks pass by until the schedule is resumed."""
    _tell("pause", name, schedule_id, {"reason": check_reason(reason)}, book, url, token)
    say(f"schedule {schedule_id} of {name} is paused")


@schedule_app.command()
@examples("boki flow schedule resume report nightly")
def resume(name: Name, schedule_id: Id, book: Book = "", url: Url = "", token: Token = "") -> None:
    """Let ticks count again, from now on."""
    _tell("resume", name, schedule_id, {}, book, url, token)
    say(f"schedule {schedule_id} of {name} continues")


@schedule_app.command()
@examples("boki flow schedule trigger report nightly")
def trigger(
    name: Name,
    schedule_id: Id,
    overlap: AtOverlap = "",
    key: Annotated[str, typer.Option("--key", help="The same key starts it once.")] = "",
    book: Book = "",
    url: Url = "",
    token: Token = "",
) -> None:
    """Start the workflow now, and print its id."""
    with Flows(url, token, book, SCHEDULES) as flows:
        said = flows.post(name, schedule_id, "trigger", query={"overlap": overlap}, key=key)
    results().print(said["id"], markup=False)


@schedule_app.command()
@examples("boki flow schedule backfill report nightly 2026-11-01 2026-11-08")
def backfill(
    name: Name,
    schedule_id: Id,
    start: Annotated[str, typer.Argument(metavar="START", help="The first time, by UTC.", show_default=False)],
    end: Annotated[str, typer.Argument(metavar="END", help="The time behind the last one.", show_default=False)],
    overlap: AtOverlap = "",
    book: Book = "",
    url: Url = "",
    token: Token = "",
) -> None:
    """Start the ticks of a time now.

    One after the other, or together if the schedule or --overlap says allow.
    """
    body = {"start": utc(start, "START"), "end": utc(end, "END"), **({"overlap": overlap} if overlap else {})}
    with Flows(url, token, book, SCHEDULES) as flows:
        data = msgspec.json.encode(body)
        said = flows.post(name, schedule_id, "backfill", body=data, content_type="application/json")
    say(f"{said['ticks']:,} ticks of schedule {schedule_id} are taken")


@schedule_app.command()
@examples("boki flow schedule delete report nightly")
def delete(name: Name, schedule_id: Id, book: Book = "", url: Url = "", token: Token = "") -> None:
    """Start nothing any more. What runs continues."""
    _tell("delete", name, schedule_id, {}, book, url, token)
    say(f"schedule {schedule_id} of {name} is gone")


def _tell(verb: str, name: str, schedule_id: str, query: dict[str, str], book: str, url: str, token: str) -> None:
    with Flows(url, token, book, SCHEDULES) as flows:
        flows.post(name, schedule_id, verb, query=query)


def _next(one: dict[str, Any]) -> str:
    ticks = one.get("next_us")
    return time_cell(ticks[0]) if ticks else ""


def _counts(one: dict[str, Any]) -> str:
    return ", ".join(f"{number:,} {verdict}" for verdict, number in one.get("counts", {}).items()) or "none yet"
