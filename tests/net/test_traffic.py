"""Who may send what, on which lane."""

from __future__ import annotations

import inspect

from boki.log.membership import Role
from boki.net.traffic import LOCAL, RULES, Lane, allowed
from boki.protocol import call_messages as remote
from boki.protocol import messages
from boki.protocol.messages import Message


def message_classes() -> set[type[Message]]:
    return {
        kind
        for module in (messages, remote)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Message) and kind is not Message
    }


def test_every_message_class_has_its_place() -> None:
    """Each class either travels under a rule or never leaves its process, and no rule is of a class that is gone."""
    assert RULES.keys() | LOCAL == message_classes()
    assert not RULES.keys() & LOCAL
    assert all(rule.senders for rule in RULES.values())


def test_only_sequencers_publish_and_only_controllers_seal() -> None:
    """What decides about the order, or ends a term, cannot come from any other role."""
    for kind in (messages.AppendEntry, messages.EntriesStored, messages.Metalog, messages.TellTail, messages.Sealed):
        assert RULES[kind].senders == {Role.SEQUENCER}
    for kind in (messages.Seal, messages.FetchSealed, messages.Complete, messages.Ping, messages.FetchShards):
        assert RULES[kind].senders == {Role.CONTROLLER}
    assert RULES[messages.StoreBatch].senders == {Role.ENGINE}
    assert RULES[messages.RequestEntry].senders == {Role.ENGINE, Role.CONTROLLER}
    assert RULES[messages.ShardProgress].senders == {Role.STORAGE}
    assert RULES[messages.Pong].senders == set(Role)


def test_gateways_send_nothing_of_the_log() -> None:
    """A gateway asks engines and answers heartbeats: it can neither store nor order anything."""
    assert allowed(Role.GATEWAY) - remote.SENDERS.keys() == {messages.Pong}


def test_bulk_never_shares_the_lane_of_cuts_and_heartbeats() -> None:
    """What can be large is on the lanes of appends and reads; what all wait for is on that of control."""
    bulk = {kind for kind, rule in RULES.items() if rule.lane is not Lane.CONTROL}
    assert {messages.StoreBatch, messages.IndexBatch, messages.BatchesFetched, messages.CheckpointFetched} <= bulk
    assert {messages.StoreCheckpoint, messages.StateFetched, remote.StartCall, remote.LogReply} <= bulk
    assert not bulk & {messages.AppendEntry, messages.Metalog, messages.Ping, messages.Pong, messages.ShardProgress}
