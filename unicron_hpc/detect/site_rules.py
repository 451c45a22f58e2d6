"""A site's own rows for the error table, read from YAML; every mistake has its place and what to write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from unicron_hpc.config.fields import Context, Count, FieldError, Frozen, Name, Text
from unicron_hpc.config.problems import Problem, SettingsError, did_you_mean
from unicron_hpc.config.raw import Items, Raw, Table, parse, place_of, read_text
from unicron_hpc.config.translate import validated
from unicron_hpc.detect.automaton import TooSlow
from unicron_hpc.detect.backtracking import check
from unicron_hpc.detect.rule import Rule, Scope, SeverityName
from unicron_hpc.detect.severity import Blame
from unicron_hpc.detect.table import default_table, use_table

_KIND = "file of rules (docs/errors.md)"
_EXAMPLE = "rules: [{name: ..., pattern: ..., error: ..., severity: SEV1, blame: node, meaning: ...}]"
_FLAGS = re.IGNORECASE | re.ASCII
#: Lines of a training without faults that have no word in common: what fits all of them fits any line.
_HEALTHY = ("iteration 120 / 5000, loss: 2.71", "Loading the dataset from disk")


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _expression(value: str) -> str:
    """Refuse what is no regular expression, takes very long, or fits every line."""
    try:
        expression = re.compile(value, _FLAGS)
        check(value, _FLAGS)
    except TooSlow as error:
        raise FieldError(f"can take very long: {error}", error.hint) from error
    except (re.error, OverflowError, RecursionError) as error:
        raise FieldError(
            f"not a regular expression: {error}",
            "put a backslash before ( ) [ ] { } . * + ? | that are meant as they stand",
        ) from error
    if value and (expression.search("") or all(map(expression.search, _HEALTHY))):
        raise FieldError("fits every line", "write words that only this error has")
    return value


class _RuleForm(Frozen):
    """A rule as it is written; `detect.rule.Rule` says what the keys mean."""

    name: Name
    error: Text
    severity: SeverityName
    blame: Literal["node", "process", "network", "program", "nobody"]
    meaning: Text
    pattern: Annotated[str, AfterValidator(_expression)] = ""
    xid: Annotated[tuple[Count, ...], BeforeValidator(_one_or_many)] = ()
    advice: str = ""
    source: str = "site rule"
    example: str = ""
    collateral: bool = False
    vague: bool = False
    scope: Literal["any", "exception"] = "any"
    drain: bool | None = None


def rules_text(path: Path) -> str:
    """The text of a file of rules, once all of it was found right.

    Raises
    ------
    SettingsError
        With everything that is wrong in it.
    """
    text = read_text(path, _KIND)
    parse_rules(text, str(path))
    return text


def read_rules(path: Path) -> tuple[Rule, ...]:
    """The rules in a file.

    Raises
    ------
    SettingsError
        With everything that is wrong in it.
    """
    return parse_rules(read_text(path, _KIND), str(path))


def use_rules_of(path: Path) -> None:
    """Have this process judge by a job's rules, which were checked when it was submitted, if it has any."""
    use_table(default_table().with_rules(read_rules(path)) if path.exists() else None)


def parse_rules(text: str, source: str) -> tuple[Rule, ...]:
    """Rules from YAML text: `rules:` with a list of them.

    Parameters
    ----------
    text
        The text of the file.
    source
        Name of the file, for messages.

    Raises
    ------
    SettingsError
        With everything that is wrong, each with its line.
    """
    table = parse(text, source, _EXAMPLE, start=f"write `{_EXAMPLE}`, or leave out the setting that names it")
    problems = [
        Problem(str(place), f"{key}: unknown key", "all rules stand below one `rules:`")
        for key, place in table.keys.items()
        if key != "rules"
    ]
    rules: list[Rule] = []
    raw = table.values.get("rules")
    if not isinstance(raw, Items):
        where = str(table.place if raw is None else raw.place)
        problems.append(Problem(where, "rules: expected a list of rules", f"write `{_EXAMPLE}`"))
    else:
        places: dict[str, Raw] = {}
        for k, item in enumerate(raw.items):
            rule = _rule(item, f"rules.{k}", problems)
            if rule is None:
                continue
            if rule.name in places:
                where = str(place_of(item, ("name",)))
                first = places[rule.name].place.line
                problems.append(
                    Problem(
                        where, f"a rule named {rule.name!r} stands in line {first}", "rename one of the two"
                    )
                )
            places[rule.name] = item
            rules.append(rule)
    if problems:
        raise SettingsError(problems)
    return tuple(rules)


def _rule(raw: Raw, prefix: str, problems: list[Problem]) -> Rule | None:
    if not isinstance(raw, Table):
        problems.append(Problem(str(raw.place), f"{prefix}: expected a rule", "write `- name: ...`"))
        return None
    known = list(_RuleForm.model_fields)
    found: list[Problem] = []
    for key, place in raw.keys.items():
        if key not in known:
            close = did_you_mean(key, known)
            hint = f"did you mean `{close}`?" if close else f"known here: {', '.join(known)}"
            found.append(Problem(str(place), f"{prefix}.{key}: unknown key", hint))
    values = {key: value for key, value in raw.values.items() if key in known}
    context = Context(Path(), Path(), expand=False)
    form = validated(_RuleForm, Table(values, raw.place, raw.keys), prefix, context, found)
    if form is not None:
        found += _contradictions(form, raw, prefix)
    problems += found
    if form is None or found:
        return None
    return _as_rule(form)


def _contradictions(form: _RuleForm, raw: Table, prefix: str) -> list[Problem]:
    """What is right key by key and wrong together."""

    def problem(key: str, message: str, hint: str) -> Problem:
        return Problem(str(place_of(raw, (key,))), f"{prefix}.{key}: {message}", hint)

    if not form.pattern and not form.xid:
        return [
            problem("pattern", "neither pattern nor xid is given", "write `pattern: 'words of the line'`")
        ]
    found = []
    if form.drain and form.blame != "node":
        found.append(
            problem("drain", f"a node is not drained when the blame is on the {form.blame}", "blame: node")
        )
    if form.example and not found and not _as_rule(form).fits(form.example):
        found.append(problem("example", "the rule does not fit its own example", "correct one of the two"))
    return found


def _as_rule(form: _RuleForm) -> Rule:
    return Rule(**form.model_dump() | {"blame": Blame(form.blame), "scope": Scope(form.scope)})
