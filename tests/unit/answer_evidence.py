"""What a test does with a flag, as its code shows it: how a row of answers proves its test.

A test exercises a flag if its own code gives it a value: the spelling of the flag in a text, the
name of its field as a keyword argument or a text of its own, or either among the values that it is
parametrized with. Comments, docstrings and names of functions are no proof, and neither is what a
helper does: a base line that all tests of a module share would prove every row. A field of one word
(`seed`, `load`) may be anything's: it counts only as a keyword of a configuration, or as a key.

A test that code calls with every flag there is shows of each that it is handed on, and no more: it
proves a flag that is only handed on (`may_be_handed_on`). Nor does a test prove that a flag works
that only sees configurations refused; but where it compares with the checkpoint (`.check(`), a
refusal of what differs is the meaning.

A test mentions what is no flag (a key, a value, a function) if the word stands in its own code, or
among what it is parametrized with, also where code makes that.
"""

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeGuard

from agentrl.config import answers

__all__ = ["exercises", "is_there", "may_be_handed_on", "mentions", "only_refuses"]

ROOT = Path(__file__).resolve().parents[2]
#: What makes a configuration, and helpers of tests that do.
_CONFIGURATIONS = {"RunConfig", "MegatronSettings", "open_backend", "settings"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Kind = Literal["text", "keyword", "setting"]


def is_there(test: str) -> bool:
    """Whether there is a test `file::function`, or `file::function[case]`."""
    file, name, case = _parts(test)
    function = _functions(_module(file)).get(name)
    if function is None or not name.startswith("test_"):
        return False
    return not case or case in _cases(file, function)


def mentions(test: str, word: str) -> bool:
    """Whether the test is there and has `word` in its code, or among what it is called with; of a
    test that is named with a case, that case alone."""
    file, name, case = _parts(test)
    function = _functions(_module(file)).get(name)
    if function is None:
        return False
    if case:
        return case == word
    whole = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
    code = (*_code(function), *_tables(function, _module(file)))
    return any(whole.search(ast.unparse(part)) for part in code) or word in _cases(file, function)


def may_be_handed_on(flag: str) -> bool:
    """Whether it is enough of a flag that it is handed on: another program is told it, or the
    parser alone answers it."""
    row = answers.rows().get(flag)
    handed = {**answers.rows("sglang"), **answers.rows("router")}
    return row is not None and (row.state != "works" or flag in handed)


def exercises(test: str, flag: str, *, is_handed_on: bool = True) -> bool:
    """Whether the test `file::function` is there and gives `flag` (`--lr-warmup-init`).
    `is_handed_on`: to do so among values that code makes is enough."""
    file, name, _ = _parts(test)
    module = _module(file)
    function = _functions(module).get(name)
    if function is None:
        return False
    if any(_gives(kind, word, flag) for kind, word in _words(function, module)):
        return True
    made = _parameters(file, function) if is_handed_on else ()
    return any(_gives("setting", value, flag) for value in made)


def only_refuses(test: str) -> bool:
    """Whether all that the test sees is that configurations are refused, and it compares them with
    no checkpoint."""
    file, name, _ = _parts(test)
    function = _functions(_module(file))[name]
    refusals = [node for node in ast.walk(function) if _sees_refusal(node)]
    within = {id(node) for refusal in refusals for node in ast.walk(refusal)}
    caught = {ast.unparse(name) for refusal in refusals for name in _caught(refusal)}
    others = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Assert)
        and id(node) not in within
        and not any(name in ast.unparse(node) for name in caught)
    ]
    compares = any(isinstance(n, ast.Attribute) and n.attr == "check" for n in ast.walk(function))
    return bool(refusals) and not others and not compares


def _sees_refusal(node: ast.AST) -> TypeGuard[ast.With]:
    """`with pytest.raises(ConfigError)`."""
    if not isinstance(node, ast.With):
        return False
    expected = " ".join(ast.unparse(item.context_expr) for item in node.items)
    return "raises(ConfigError" in expected


def _caught(node: ast.With) -> list[ast.expr]:
    return [item.optional_vars for item in node.items if item.optional_vars is not None]


def _parts(test: str) -> tuple[str, str, str]:
    """File, function and case."""
    file, _, function = test.partition("::")
    name, _, case = function.removesuffix("]").partition("[")
    return file, name, case


@functools.cache
def _module(file: str) -> ast.Module:
    path = ROOT / file
    return ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])


def _functions(module: ast.Module) -> dict[str, _Function]:
    return {node.name: node for node in module.body if isinstance(node, _Function)}


def _gives(kind: _Kind, word: str, flag: str) -> bool:
    spelled = re.escape(flag.removeprefix("--"))
    if re.search(rf"(?<![\w-])--(no-)?{spelled}(?![\w-])", word):
        return True
    field = flag.removeprefix("--").replace("-", "_")
    fields = {field, re.sub("^(sglang|router)_", "", field)}
    return word in fields and (kind == "setting" or "_" in word)


def _words(function: _Function, module: ast.Module) -> Iterator[tuple[_Kind, str]]:
    """Texts and keywords of a test, and of the tables that it is parametrized by."""
    for part in (*_code(function), *_tables(function, module)):
        for node in ast.walk(part):
            if _is_text(node):
                yield "text", str(node.value)
            elif isinstance(node, ast.Dict):
                yield from (("setting", str(key.value)) for key in node.keys if _is_text(key))
            elif isinstance(node, ast.Call):
                kind: _Kind = "setting" if _name(node.func) in _CONFIGURATIONS else "keyword"
                yield from ((kind, keyword.arg) for keyword in node.keywords if keyword.arg)


def _code(function: _Function) -> list[ast.AST]:
    """A test without its name and docstring: what it asks for, does, and is parametrized with."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return [function.args, *body, *function.decorator_list]


def _is_text(node: ast.AST | None) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _name(called: ast.expr) -> str:
    return called.id if isinstance(called, ast.Name) else ""


def _tables(function: _Function, module: ast.Module) -> Iterator[ast.expr]:
    """The constants that decorators name, and those that these name, here or in other files of
    tests from which this one imports."""
    left, constants = list(function.decorator_list), dict[str, ast.expr]()
    for line in module.body:
        if isinstance(line, ast.ImportFrom) and (line.module or "").startswith("tests."):
            constants |= _constants(_module(f"{str(line.module).replace('.', '/')}.py"))
    constants |= _constants(module)
    while left:
        for node in ast.walk(left.pop()):
            if isinstance(node, ast.Name) and (value := constants.pop(node.id, None)) is not None:
                left.append(value)
                yield value


@functools.cache
def _constants(module: ast.Module) -> dict[str, ast.expr]:
    found = {}
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found[node.target.id] = node.value
    return found


@functools.cache
def _parameters(file: str, function: _Function) -> tuple[str, ...]:
    """The texts among the values that a test is called with, where code makes them."""
    if not function.decorator_list:
        return ()
    marks = getattr(getattr(_imported(file), function.name), "pytestmark", [])
    values = [row for mark in marks if mark.name == "parametrize" for row in mark.args[1]]
    flat = [value for row in values for value in (row if isinstance(row, tuple) else (row,))]
    return tuple(value for value in flat if isinstance(value, str))


@functools.cache
def _cases(file: str, function: _Function) -> frozenset[str]:
    """The texts that a test is called with, and those of the lists of its file that its decorators
    name: a day plays a part of them."""
    nodes = [node for part in function.decorator_list for node in ast.walk(part)]
    named = {node.id for node in nodes if isinstance(node, ast.Name)}
    lists = [vars(_imported(file)).get(name) for name in named] if named else []
    listed = [value for each in lists if isinstance(each, list | tuple | dict) for value in each]
    texts = (value for value in listed if isinstance(value, str))
    return frozenset((*_parameters(file, function), *texts))


def _imported(file: str) -> ModuleType:
    return importlib.import_module(file.removesuffix(".py").replace("/", "."))
