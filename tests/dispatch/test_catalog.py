"""The catalog: versions, clashes of names, and what stays in service when a module breaks."""

from __future__ import annotations

from boki.dispatch.catalog import Catalog, Install, Withdraw
from boki.protocol.calls import FunctionInfo, ModuleInfo


def module(name: str, *functions: str, error: str = "") -> ModuleInfo:
    infos = tuple(FunctionInfo(name=function, module=name, is_async=True) for function in functions)
    return ModuleInfo(module=name, path=f"functions/{name}.py", functions=infos, error=error)


def installed(changes: list) -> list[tuple[str, int]]:
    return [(change.module, change.version) for change in changes if isinstance(change, Install)]


def test_each_good_description_is_a_new_version() -> None:
    """Versions count up per module, also over a time when it was gone."""
    catalog = Catalog()
    assert installed(catalog.update([module("a", "f"), module("b", "g")])) == [("a", 1), ("b", 1)]
    assert installed(catalog.update([module("a", "f", "h")])) == [("a", 2)]
    assert catalog.update([], ["a"]) == [Withdraw("a")]
    assert installed(catalog.update([module("a", "f")])) == [("a", 3)]
    assert sorted(catalog.functions) == ["f", "g"]


def test_a_broken_module_keeps_its_last_good_version() -> None:
    """Its functions stay, its error is shown, and nothing changes for callers until it is fixed."""
    catalog = Catalog()
    catalog.update([module("a", "f")])
    assert catalog.update([module("a", error="a.py:1: oops")]) == []
    (shown,) = catalog.modules
    assert (shown.error, [info.name for info in shown.functions]) == ("a.py:1: oops", ["f"])
    assert installed(catalog.update([module("a", "f")])) == [("a", 2)]
    assert catalog.modules[0].error == ""


def test_a_module_that_never_was_good_is_withdrawn_with_its_error_once() -> None:
    """Callers can be told why its functions are unknown; saying so again changes nothing."""
    catalog = Catalog()
    assert catalog.update([module("a", error="oops")]) == [Withdraw("a", "oops")]
    assert catalog.update([module("a", error="oops")]) == []
    assert catalog.update([module("a", error="worse")]) == [Withdraw("a", "worse")]


def test_of_two_owners_of_a_name_the_first_stays() -> None:
    """First by time, and in one go by name; the error of the other names both files."""
    catalog = Catalog()
    changes = catalog.update([module("b", "f"), module("a", "f")])
    assert installed(changes) == [("a", 1)]
    assert isinstance(changes[1], Withdraw)
    assert "functions/b.py" in changes[1].error
    assert "functions/a.py" in changes[1].error
    assert catalog.functions["f"].module == "a"
    catalog = Catalog()
    catalog.update([module("z", "f")])
    catalog.update([module("a", "f")])
    assert catalog.functions["f"].module == "z"


def test_a_refused_module_is_taken_when_the_name_is_free() -> None:
    """The owner goes, or registers it no longer: nobody has to touch the other file."""
    for free in ([], [module("a", "other")]):
        catalog = Catalog()
        catalog.update([module("a", "f"), module("b", "f")])
        changes = catalog.update(free, [] if free else ["a"])
        assert ("b", 1) in installed(changes)
        assert catalog.functions["f"].module == "b"


def test_a_function_may_move_to_a_module_of_an_earlier_name() -> None:
    """In one go: that module is refused while the other has the name, and looked at again when it has lost it."""
    catalog = Catalog()
    catalog.update([module("a", "x"), module("b", "f", "y")])
    assert installed(catalog.update([module("a", "f"), module("b", "y")])) == [("b", 2), ("a", 2)]
    assert not any(found.error for found in catalog.modules)


def test_modules_may_exchange_functions() -> None:
    """In one go, also in a ring; what clashes with something that stays is left out, and whoever needs it."""
    catalog = Catalog()
    catalog.update([module("a", "f"), module("b", "g"), module("c", "h"), module("d", "x"), module("e", "y")])
    owners = {"g": "a", "h": "b", "f": "c", "x": "d", "y": "e"}
    ring = [module("a", "g"), module("b", "h"), module("c", "f")]
    assert installed(catalog.update([*ring, module("d", "y"), module("e", "f", "x")])) == [("a", 2), ("b", 2), ("c", 2)]
    assert {name: info.module for name, info in catalog.functions.items()} == owners
    assert [found.module for found in catalog.modules if found.error] == ["d", "e"]


def test_a_clash_that_comes_with_a_change_leaves_the_old_version() -> None:
    """A module that begins to register another's function keeps what it had."""
    catalog = Catalog()
    catalog.update([module("a", "f"), module("b", "g")])
    assert catalog.update([module("b", "f")]) == []
    assert sorted(catalog.functions) == ["f", "g"]
    assert "'f'" in catalog.modules[1].error


def test_of_two_owners_of_a_route_the_first_stays() -> None:
    """Whatever its variables are called; the error names the route, both functions and both files."""
    catalog = Catalog()

    def routed(module: str, route: str) -> ModuleInfo:
        info = FunctionInfo(name=f"of_{module}", module=module, is_async=True, http=(route,))
        return ModuleInfo(module=module, path=f"functions/{module}.py", functions=(info,))

    changes = catalog.update([routed("a", "GET /u/{code}"), routed("b", "GET /u/{id}"), routed("c", "PUT /u/{id}")])
    assert installed(changes) == [("a", 1), ("c", 1)]
    assert catalog.modules[1].error == (
        "functions/b.py: the route 'GET /u/{id}' of 'of_b' is that of 'of_a' in functions/a.py already: change one of "
        "them"
    )
