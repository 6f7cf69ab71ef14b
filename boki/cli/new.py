"""`boki new`: a small project to start from, with a function, a test that needs no server, and a configuration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from boki.cli.help import examples
from boki.cli.terminal import results
from boki.errors import InvalidArgument

TEMPLATE = Path(__file__).parent / "template"
PLACEHOLDER = "PROJECT_NAME"


@examples("boki new hello", "boki new work/shop")
def command(
    name: Annotated[str, typer.Argument(help="The project's folder, new or empty; . is this one.", show_default=False)],
) -> None:
    """Make a small project: a function, a test, a configuration."""
    folder = create(Path(name))
    is_here = folder.resolve() == Path.cwd()
    steps = (
        *(() if is_here else (f"cd {folder}",)),
        "pip install pytest && pytest",
        "boki dev",
        "boki invoke greet Ada             (in a second terminal, in the same folder)",
        "boki log read guests --tag guest:Ada",
    )
    results().print(
        f"Made {folder.resolve().name if is_here else folder}. Next:\n\n  " + "\n  ".join(steps), markup=False
    )


def create(folder: Path) -> Path:
    """Write the project into a folder of its own, which is made if it is not there. `InvalidArgument` if it holds
    something.
    """
    name = folder.resolve().name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
        raise InvalidArgument(f"{name!r} cannot be a project's name: use letters, digits, '.', '_' and '-'")
    if folder.exists() and not folder.is_dir():
        raise InvalidArgument(f"{folder} is a file: choose another name, or remove it")
    if folder.exists() and (held := sorted(entry.name for entry in folder.iterdir())):
        raise InvalidArgument(f"{folder} is not empty, it holds {', '.join(held[:3])}: choose another name")
    if not folder.parent.is_dir():
        raise InvalidArgument(f"there is no folder {folder.parent} to make {name} in")
    for source in sorted(TEMPLATE.rglob("*")):
        if source.is_file() and "__pycache__" not in source.parts:
            # Dot files would be taken for the repository's own: they are kept without the dot.
            relative = source.relative_to(TEMPLATE)
            target = folder / (relative.with_name(f".{relative.name}") if relative.name == "gitignore" else relative)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(source.read_text(encoding="utf-8").replace(PLACEHOLDER, name), encoding="utf-8")
    return folder
