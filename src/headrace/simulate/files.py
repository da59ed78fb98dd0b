"""Scenario files: those that come with headrace, and anybody's own."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from headrace.core.errors import MissingExtra, OptionError
from headrace.simulate.scenario import Cluster, Costs, Data, Job, Measure, Nodes, Scenario, Storage

READY = Path(__file__).parent / "scenarios"
_TABLES: dict[str, type[msgspec.Struct]] = {
    "$": Scenario,
    "data": Data,
    "costs": Costs,
    "nodes": Nodes,
    "storage": Storage,
    "cluster": Cluster,
    "jobs": Job,
    "measure": Measure,
}
_LISTS = ("nodes", "jobs")


def ready_scenarios() -> list[str]:
    """The names of the scenarios that come with headrace."""
    return sorted(path.stem for path in READY.glob("*.toml"))


def load_scenario(name: str, settings: Iterable[str] = ()) -> Scenario:
    """A scenario by its name or its file, with ``key=value`` settings made in it. Raises OptionError."""
    ready = READY / f"{name}.toml"
    path = ready if name in ready_scenarios() else Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"there is no scenario {name!r} ({error.strerror}); write the path of a file, or one of "
            f"{', '.join(ready_scenarios())}"
        ) from None
    except UnicodeDecodeError:
        raise OptionError(f"{name} is not text; write TOML in UTF-8") from None
    document = _parse(path, text)
    if not isinstance(document, dict):
        raise OptionError(f"{name} has no tables; write at least [data] and [[jobs]]")
    for setting in settings:
        _set(document, setting)
    return read_scenario(document)


def _parse(path: Path, text: str) -> Any:
    if path.suffix not in (".yaml", ".yml"):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise OptionError(f"{path} is not TOML: {error}") from None
    try:
        import yaml
    except ImportError:
        raise MissingExtra("PyYAML", "yaml", "a scenario in YAML") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise OptionError(f"{path} is not YAML: {error}") from None


def read_scenario(document: dict[str, Any]) -> Scenario:
    """The scenario that a document of tables describes, checked. Raises OptionError."""
    try:
        scenario = msgspec.convert(document, Scenario)
    except msgspec.ValidationError as error:
        raise OptionError(_explain(str(error))) from None
    scenario.check()
    return scenario


def _explain(message: str) -> str:
    """What msgspec says, with the place first and with what can be written there."""
    said, _, place = message.partition(" - at ")
    place = place.strip("`").removeprefix("$").removeprefix(".")
    unknown = re.search(r"unknown field `(.*)`", said)
    if unknown:
        table = _TABLES[re.sub(r"\[.*", "", place) or "$"]
        known = ", ".join(field.name for field in msgspec.structs.fields(table))
        return f"{place or 'the scenario'}: there is no {unknown[1]!r}; write one of {known}"
    missing = re.search(r"required field `(.*)`", said)
    if missing:
        return f"{place or 'the scenario'}: {missing[1]!r} is missing; write it"
    return f"{place}: {said[:1].lower()}{said[1:].replace('`', '')}"


def _set(document: dict[str, Any], setting: str) -> None:
    """Make one setting. A key without a number, where there are several tables, is set in all of them."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise OptionError(f"{setting!r} sets nothing; write key=value, e.g. jobs.batch=128 or nodes.0.cpus=8")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    *words, last = key.strip().split(".")
    for table in _tables(document, words, setting):
        table[last] = value


def _tables(place: Any, words: list[str], setting: str) -> list[dict[str, Any]]:
    """The tables that words lead to."""
    if isinstance(place, list):
        if not words or not words[0].isdigit():
            return [table for inner in place for table in _tables(inner, words, setting)]
        if int(words[0]) >= len(place):
            raise OptionError(f"{setting!r}: there are {len(place)} of these tables, and the first is 0")
        return _tables(place[int(words[0])], words[1:], setting)
    if not isinstance(place, dict):
        raise OptionError(f"{setting!r} leads into a value; write the key of a table's entry")
    if not words:
        return [place]
    return _tables(place.setdefault(words[0], [{}] if words[0] in _LISTS else {}), words[1:], setting)
