"""Idioms that the prose of this repository does without, each with what to write instead.

Readers know the language of the field and need not learn another one: see the glossary for the words of this project.
"""

import re
from pathlib import Path

from tests.prose import prose

IDIOMS: dict[str, str] = {
    r"\banew\b": "again",
    r"\bfor ever\b": "forever",
    r"\b(goes|went) on\b(?! (a|the)\b)": "continues",
    r"\bgo on\b": "continue",
    r"\bso many\b": "this many, or the number's name: the maximum number of messages",
    r"\bso long\b(?! (as|ago|that|ones))": "this long, or a number with its unit: seconds to wait",
    r"\bfor good\b": "permanently",
    r"\btaken for lost\b": "presumed lost; fenced, if it is shut out",
    r"\bmend(s|ed|ing)?\b": "fix a bug, repair replicas",
    r"\bheld against\b": "compared with",
    r"\blook(s|ed)? whether\b": "check whether, check that",
    r"\bsees? to it\b": "ensure",
    r"\blets? go of\b": "drop, release",
    r"\b(lies?|lay|lying) still\b": "is idle",
    r"\b(stands?|stood|standing) still\b": "stall; time stops",
    r"\btells? of\b": "describe, report",
    r"\bpass(ed|es)? by (what|records|them)\b|\b(is|are|was|were) passed by\b": "skip",
    r"\bwithout end\b": "without limit, forever",
    r"\bshall\b": "must, should, will",
    r"\bwhat (is there|there is)\b": "what exists, what is present",
    r"\bthat are there\b": "that exist, that are present",
    r"\bwhat(ever)? (came|became|becomes|comes) of\b": "the outcome of, the result",
    r"\bin vain\b": "without effect",
    r"\blest\b": "so that it does not",
    r"\bupon\b": "on",
    r"\bone another\b": "each other",
    r"\bthere(by|of|in|upon)\b|\bwhere(in|upon|of)\b|\bwhence\b": "say what the word points at",
    r"\bto be had\b": "available",
    r"\bput right\b": "fixed",
    r"\bcomes? to nothing\b": "has no effect",
    r"\bsome day\b|\bone day\b": "eventually",
    r"\bout of time\b": "timed out",
    r"'s begin\b|\bthe begin of\b|\bat the begin\b": "start",
    r"\binto being\b": "is made",
    r"\bas may be\b": "as possible, as allowed",
    r"\brightly\b": "correctly",
    r"\btill\b|\bere\b": "until, before",
    r"\bby and by\b": "gradually",
    r"\bof (its|their) own accord\b": "on its own",
    r"\bas it were\b": "leave it out",
    r"\bmust needs\b": "must",
    r"\bdawdl\w+": "is slow",
    r"\bleavings\b": "orphaned messages",
    r"\bsightings?\b": "coverage, a situation that must have been met",
    r"\bfarewells?\b": "decommission, drain",
    r"\bsay it by\b": "pass it in",
    r"\b(letting|lets) be\b": "leave alone",
}
"""By pattern, the remedy. Patterns see text in lower case whose lines and spaces are single spaces."""

_FOUND = [(re.compile(pattern), remedy) for pattern, remedy in IDIOMS.items()]
_ANY = re.compile("|".join(f"(?:{pattern})" for pattern in IDIOMS))


def plain_words(path: Path, source: str) -> list[str]:
    """The idioms in the prose of a source or page, with what to write instead."""
    found = []
    for line, text in prose(source, is_page=path.suffix == ".md"):
        words = re.sub(r"\s+", " ", text.lower())
        if not _ANY.search(words):
            continue
        for pattern, remedy in _FOUND:
            for match in pattern.finditer(words):
                near = words[max(0, match.start() - 20) : match.end() + 20]
                found.append(f"from line {line}: {match[0]!r} in “{near}”: write: {remedy}")
    return found
