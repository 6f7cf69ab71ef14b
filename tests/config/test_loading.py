"""Configuration: what wins over what, what is refused, and that a refusal lists everything at once."""

from pathlib import Path
from typing import Any

import pytest

from boki.config.loading import Config, DevConfig, flag, load, settings
from boki.config.node import ALL_CONFIGS, NodeConfig
from boki.config.up import UpConfig
from boki.errors import ConfigError
from boki.log.limits import Limits


def write(folder: Path, text: str) -> Path:
    file = folder / "boki.toml"
    file.write_text(text)
    return file


def refusal(**arguments: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(DevConfig, **{"flags": {}, "environment": {}, **arguments})  # type: ignore[arg-type]
    problems = caught.value.problems
    assert all(problem in str(caught.value) for problem in problems)
    return list(problems)


def test_flags_win_over_the_environment_over_the_file_over_defaults(tmp_path: Path) -> None:
    """Each source fills in what the stronger ones leave open."""
    file = write(tmp_path, "port = 1\nreplicas = 3\nlogs = 2\n[limits]\nrecord_bytes = 1000\ntag_bytes = 9\n")
    environment = {"BOKI_PORT": "2", "BOKI_LOGS": "4", "BOKI_LIMITS_TAG_BYTES": "8", "HOME": "x"}
    config = load(DevConfig, flags={"port": 3, "logs": None}, environment=environment, file=file)
    assert (config.port, config.logs, config.replicas) == (3, 4, 3)
    assert config.limits == Limits(record_bytes=1000, tag_bytes=8)
    assert config.drain_s == DevConfig().drain_s


def test_every_setting_can_be_set_from_every_source(tmp_path: Path) -> None:
    """A field of the struct is a flag, a variable and a key of the file, without being named a second time."""
    defaults = {setting.name: setting.default for setting in settings(DevConfig)}
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in defaults.items()}
    variables = {setting.variable: texts[setting.name] for setting in settings(DevConfig)}
    assert load(DevConfig, flags={}, environment=variables) == DevConfig()
    assert load(DevConfig, flags=defaults, environment={}) == DevConfig()
    lines = [
        f"{name} = {text if not isinstance(defaults[name], str | Path) else repr(text)}" for name, text in texts.items()
    ]
    assert load(DevConfig, flags={}, environment={}, file=write(tmp_path, "\n".join(lines))).limits == Limits()


def test_every_setting_of_the_command_line_is_explained() -> None:
    """A flag's help is the field's description."""
    assert all(setting.description for setting in settings(DevConfig) if "." not in setting.name)


def test_quorum_and_sequencers_follow_from_the_replicas() -> None:
    """The defaults are a majority, and three sequencers as soon as there are three replicas."""
    assert [(c.write_quorum, c.sequencers) for c in (DevConfig(replicas=n) for n in (1, 2, 3, 5))] == [
        (1, 1),
        (2, 1),
        (2, 3),
        (3, 3),
    ]
    assert DevConfig(replicas=3, write_quorum=3, sequencers=1).write_quorum == 3


def test_every_problem_is_listed_with_where_it_came_from(tmp_path: Path) -> None:
    """Unknown names, wrong types, wrong ranges and contradictions are all told in one go."""
    problems = refusal(
        flags={"port": 70_000, "write_quorum": 2},
        environment={
            "BOKI_REPLICAZ": "3",
            "BOKI_DRAIN_S": "soon",
            "BOKI_HOST": "0.0.0.0",
            "BOKI_LIMITS_AUX_BYTES": "-1",
        },
        file=write(tmp_path, 'durability = "maybe"\ncolour = 1\n'),
    )
    expected = ("colour", "BOKI_REPLICAZ", "durability", "drain_s", "port", "limits.aux_bytes", "write_quorum", "host")
    assert len(problems) == len(expected)
    assert all(any(word in problem for problem in problems) for word in expected)
    assert all(any(origin in problem for problem in problems) for origin in ("boki.toml", "BOKI_DRAIN_S", "--port"))


def test_an_unknown_setting_is_refused_with_a_guess(tmp_path: Path) -> None:
    """A typing error is found by name, wherever it was made."""
    for problems in (
        refusal(file=write(tmp_path, "replicaz = 3\n")),
        refusal(environment={"BOKI_REPLICAZ": "3"}),
        refusal(flags={"replicaz": 3}),
    ):
        (problem,) = problems
        assert "did you mean" in problem
        assert "replicas" in problem.lower()
        assert "Allowed" not in problem


def test_a_guess_is_only_made_if_it_is_close(tmp_path: Path) -> None:
    """What all names share does not make two of them alike."""
    for problems in (refusal(environment={"BOKI_FOO": "1"}), refusal(file=write(tmp_path, "foo = 1\n"))):
        assert "did you mean" not in problems[0]
        assert "Allowed" in problems[0]
    assert "did you mean BOKI_DURABILITY?" in refusal(environment={"BOKI_DURABILTY": "fsync"})[0]


def test_a_choice_is_told_with_what_there_is_to_choose_from() -> None:
    """Nobody has to look it up."""
    assert "expected fsync or memory" in refusal(flags={"durability": "none"})[0]
    with pytest.raises(ConfigError, match="expected console or json"):
        DevConfig(log_format="xml")  # type: ignore[arg-type]


def test_a_table_where_a_value_is_due_is_refused(tmp_path: Path) -> None:
    """The file's shape is checked, not only its leaves."""
    assert refusal(file=write(tmp_path, "limits = 3\n"))
    assert refusal(file=write(tmp_path, "[port]\nnumber = 3\n"))


@pytest.mark.parametrize("text", ["port = \n", "\x00"])
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, text: str) -> None:
    """The message names the file and says where it breaks."""
    (problem,) = refusal(file=write(tmp_path, text))
    assert "boki.toml" in problem


def test_a_missing_file_is_refused_only_if_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`boki.toml` may be absent; a file that a flag or `BOKI_CONFIG` names may not."""
    monkeypatch.chdir(tmp_path)
    assert load(DevConfig, flags={}, environment={}) == DevConfig()
    assert "gone.toml" in refusal(file=tmp_path / "gone.toml")[0]
    assert "gone.toml" in refusal(environment={"BOKI_CONFIG": str(tmp_path / "gone.toml")})[0]
    write(tmp_path, "port = 9\n")
    assert load(DevConfig, flags={}, environment={}).port == 9


def test_paths_of_a_file_are_relative_to_it(tmp_path: Path) -> None:
    """A configuration means the same wherever the command is started."""
    config = load(DevConfig, flags={}, environment={}, file=write(tmp_path, 'data = "d"\nfunctions = "/apps"\n'))
    assert (config.data, config.functions) == (tmp_path / "d", Path("/apps"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    """What only this machine can reach is open."""
    assert DevConfig(host=host).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "example.org"])
def test_other_addresses_need_a_token_or_insecure(host: str) -> None:
    """Nobody opens a server to a network by accident."""
    with pytest.raises(ConfigError, match="BOKI_TOKEN"):
        DevConfig(host=host)
    assert DevConfig(host=host, token="secret").host == host
    assert DevConfig(host=host, insecure=True).host == host


def test_values_made_in_python_are_checked_too() -> None:
    """There is no way to a configuration around its checks."""
    with pytest.raises(ConfigError, match="sequencers"):
        DevConfig(sequencers=2)
    with pytest.raises(ConfigError, match="port"):
        DevConfig(port="80")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Path"):
        DevConfig(data=".boki")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="append_buffer_bytes"):
        DevConfig(append_buffer_bytes=1 << 20)


def test_flag_names() -> None:
    """The message of a refused flag spells it as the command line does."""
    assert flag("limits.tags_per_record") == "--limits-tags-per-record"


@pytest.mark.parametrize("text", ["inf", "nan"])
@pytest.mark.parametrize("kind", [DevConfig, UpConfig, *ALL_CONFIGS])
def test_every_number_of_seconds_must_be_finite(tmp_path: Path, kind: type[Config], text: str) -> None:
    """From a flag, a variable and a file, and in a struct that is made by hand."""
    given: dict[str, Any] = {"name": "n"} if issubclass(kind, NodeConfig) else {}
    floats = [setting for setting in settings(kind) if isinstance(setting.default, float)]
    assert {"limits.key_window_s", "limits.history_s"} < {setting.name for setting in floats}
    assert "drain_s = 'inf' (--drain-s): expected a finite number" in refusal(flags={"drain_s": "inf"})
    for setting in floats:
        file = write(tmp_path, f"{setting.name} = {text}\n")
        sources: list[dict[str, Any]] = [
            {"flags": {**given, setting.name: text}, "environment": {}},
            {"flags": given, "environment": {setting.variable: text}},
            {"flags": given, "environment": {}, "file": file},
        ]
        for source in sources:
            with pytest.raises(ConfigError) as caught:
                load(kind, **source)
            (problem,) = caught.value.problems
            assert problem.startswith(f"{setting.name} = ")
            assert "expected a finite number" in problem or "expected float" in problem
        *struct, name = setting.name.split(".")
        with pytest.raises(ConfigError, match=rf"{name} (= {text}|must be finite)"):
            (Limits if struct else kind)(**{**({} if struct else given), name: float(text)})
