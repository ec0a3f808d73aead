"""The reader of launch scripts against bash: what it says that a script passes, bash passes.

Scripts are made of the part of bash that launch scripts are written in, and run by bash with a
`python3` and a `ray` that only print their arguments; nothing else is on its PATH. In a script of
plain things every word has to be known. In one with odd things in it, what the reader calls known
has to be right, and what it does not know has to be told, or the script refused by its line.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrl.config.launch_script import LaunchScript, read_script
from agentrl.errors import ConfigError

pytestmark = pytest.mark.slow

BASH = str(shutil.which("bash"))
EXAMPLES = int(os.environ.get("AGENTRL_SHELL_EXAMPLES", "75"))
_STUBS = """
python3() {
    [[ $1 == -c ]] && return
    builtin printf 'call\\0'; builtin printf '%s\\0' "${@:2}" end
}
ray() { while [ "$1" != -- ]; do shift; done; shift; "$@"; }
"""
_OUTSIDE = {"OUTSIDE": "/out side", "PLACE": "/there"}
_SCALARS = ("A", "B", "NUM", "MODEL_DIR")
_LISTS = ("ARGS", "MORE_ARGS", "EVAL_ARGS")

# ---- words --------------------------------------------------------------------------------------

_bare = st.text("abcXYZ019./,:=@%+-_^", min_size=1, max_size=8)
_number = st.integers(0, 99).map(str)
_name = st.sampled_from(_SCALARS)
_list = st.sampled_from(_LISTS)
_inner = st.text("ab 1\t'#;&|()<>{}*?[]~!,\\$\"\n", max_size=6)


def _quoted(text: str) -> str:
    """A text within double quotes."""
    return re.sub(r'([\\"$`])', r"\\\1", text)


def _sums() -> st.SearchStrategy[str]:
    leaf = st.one_of(_number, st.just("NUM"), st.just("$NUM"), st.just("${NUM}"))
    more = st.recursive(
        leaf,
        lambda each: st.one_of(
            st.tuples(each, st.sampled_from("+-*"), each).map(" ".join), each.map("({})".format)
        ),
        max_leaves=4,
    )
    return st.one_of(more.map("$(({}))".format), more.map("$(( {} / 3 % 7 ))".format))


_default = st.one_of(_bare, _inner.map(_quoted).map('"{}"'.format), st.just(""), st.just("a  b"))
_variable = st.one_of(
    _name.map("${}''".format),
    _name.map("${{{}}}".format),
    st.tuples(_name, st.sampled_from((":-", "-", ":+", "+")), _default).map(
        lambda each: f"${{{each[0]}{each[1]}{each[2]}}}"
    ),
    st.tuples(st.just("NOBODY"), st.sampled_from((":-", "-")), _default).map(
        lambda each: f"${{{each[0]}{each[1]}{each[2]}}}"
    ),
    _sums(),
)
_within = st.lists(
    st.one_of(
        _inner.map(_quoted),
        _name.map("${{{}}}".format),
        st.tuples(_name, _bare).map(lambda each: f"${{{each[0]}:-{each[1]}}}"),
        st.just("\\\n"),
        _sums(),
    ),
    max_size=3,
).map(lambda parts: '"{}"'.format("".join(parts)))
_plain_piece = st.one_of(
    _bare,
    _inner.filter(lambda text: "'" not in text).map("'{}'".format),
    _within,
    st.sampled_from(
        (r"$'a\tb'", r"$'it\'s'", r"$'\x41\101'", r"\ x", r"\*", r"\$A", "\\\n", r"\#")
    ),
)
_plain_word = st.one_of(
    st.lists(st.one_of(_plain_piece, _variable), min_size=1, max_size=3).map("".join),
    _name.map("${}".format),
)
_odd_piece = st.sampled_from(
    (
            "${A%a*}", "${A##*/}", "${#A}", "${A/a/b}", "${A:1}", "${A^^}", "${!A}",
            "${ARGS[1]}", "${ARGS[@]:1}", "${#ARGS[@]}", "${ARGS[-1]}", "${B:=x y}", "${A:?no}",
            "~", "~/x", "x=~", "{a,b}", "{1..3}", "*", "/bin/b*sh", "[ab]", "`echo a b`",
            "$(echo a '  )' b)", "$(echo $A)", "$OUTSIDE", '"$OUTSIDE"', "${PLACE}/x",
            '"$PLACE/a b"', '"${OUTSIDE:-x}"', "$'\\xe9'", "$'\\c'", '$"hi"', "$((NUM++))",
            "$((010))", "$((0x1F))", "$((2**3))", "$((1 ? 2 : 3))", "$(( A ))", "$((NUM=7))",
            "$1", "$@", '"$@"', "$#", "$?", "${A:-{a}}", '"${A:-{a}}"', "${C:-'a }b'}",
            '"${C:-it\'s}"', "${C:-~/x}", "${HOME:-/x}", "$(cd / && pwd)", '"a${ARGS[@]}b"',
            '"${ARGS[*]}"', "a${ARGS[@]}b", "${ARGS[*]}", '"${A:-"x y"}"', "${A:-${C:-x y}}",
            "$", "$LINENO", "${C-a{b}c}", "$(dirname /a/b/)", "$(basename /a/b)", "#x", "a#b",
            "!", "=", "\x0b", "\xa0", "é",
        )
)  # fmt: skip
_odd_word = st.lists(st.one_of(_plain_piece, _variable, _odd_piece), min_size=1, max_size=3).map(
    "".join
)

# ---- statements ---------------------------------------------------------------------------------

_gap = st.sampled_from((" ", "\n  ", "  # why (\"it's\n", " \\\n ", "\n\n  # --not this\n  ", "\t"))
_comment = st.sampled_from(("# it's (", "", '#"', "  # ${A"))
_truth = st.sampled_from(
    ("true", "false", '[ -n "$A" ]', '[[ "$A" == x* && -z "${B}" ]]', "(( NUM > 3 ))")
)


@st.composite
def _array(draw: st.DrawFn, word: st.SearchStrategy[str]) -> str:
    item = st.one_of(
        st.tuples(_bare.map("--{}".format), word).map(" ".join),
        _list.map('"${{{}[@]}}"'.format),
        _list.map("${{{}[@]}}".format),
        word,
    )
    items = draw(st.lists(item, max_size=4))
    text = "".join(f"{draw(_gap)}{each}" for each in items)
    sign = draw(st.sampled_from(("=", "=", "+=")))
    return f"{draw(_list)}{sign}({text}{draw(st.sampled_from((' ', chr(10))))})"


def _assigned(word: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sign = st.sampled_from(("=", "=", "+="))
    begin = st.sampled_from(("", "", "export ", "declare ", "readonly -p >/dev/null; "))
    scalar = st.tuples(begin, _name.filter("NUM".__ne__), sign, word).map("".join)
    return st.one_of(scalar, _number.map("NUM={}".format), _array(word), _array(word))


_others = st.one_of(
    _comment,
    st.tuples(st.sampled_from((": <<E", ": <<'E'", ": <<-\\E", ': <<"E" ;')), _inner).map(
        lambda each: "{}\n--lost \"it's {}\nE".format(each[0], re.sub(r"[`\\]", "", each[1]))
    ),
    st.sampled_from((": a b >/dev/null 2>&1", "true &&\n true", "echo 'x;y' >/dev/null", "set +x")),
)


@st.composite
def _plain_script(draw: st.DrawFn) -> tuple[str, str]:
    """A script, and a file that it sources."""
    statement = st.one_of(_assigned(_plain_word), _others)
    lines = draw(st.lists(statement, max_size=6))
    if draw(st.booleans()):
        lines.insert(0, 'HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"')
        lines.append('A=$NUM source "$HERE/other.sh"')
    if draw(st.booleans()):
        body = draw(st.lists(_assigned(_plain_word), min_size=1, max_size=2))
        lines += ["setup() {", *body, "}", "setup"]
    begun = "\n".join(["NUM=5", "A=x", "B='y  z'", "MODEL_DIR=/m", *lines])
    return f"{begun}\n{draw(_program(_plain_word))}\n", "\n".join(
        draw(st.lists(statement, max_size=3))
    )


@st.composite
def _program(draw: st.DrawFn, word: st.SearchStrategy[str]) -> str:
    argument = st.one_of(
        st.tuples(_bare.map("--{}".format), word).map(" ".join),
        _list.map("${{{}[@]}}".format),
        _list.map('"${{{}[@]}}"'.format),
        word,
    )
    arguments = draw(st.lists(argument, max_size=5))
    joint = draw(st.sampled_from((" ", " \\\n   ")))
    call = draw(
        st.sampled_from(
            (
                "python3 train.py",
                "ray job submit --address='x' \\\n -- python3 train.py",
                "X=1 python3 train_async.py",
            )
        )
    )
    return joint.join([call, *arguments]) + draw(st.sampled_from(("", "  # it's", " 2>&1", " &")))


_odd_statement = st.one_of(
    _assigned(_odd_word),
    _assigned(_plain_word),
    _others,
    st.sampled_from(
        (
            "for A in 1 2; do B+=$A; done", "for ((NUM=0; NUM<3; NUM++)); do :; done",
            "((NUM++))", "let NUM+=2", 'printf -v A \'%s\' "${ARGS[*]}"',
            "read -r A B <<< 'x y z'", "unset A", "unset 'ARGS[0]'", "ARGS[0]=first",
            "ARGS[9]=far", "ARGS[NUM]=x", "ARGS=([2]=b a)", "ARGS=x", "A=(1 2)", "A+=(3)",
            "IFS=,", "IFS=, read -ra ARGS <<< 'a,b'", "eval A=7", "declare -i NUM=1+1",
            "declare -u A=up", "declare -n B=A", 'export "A=q r"',
            "case $A in x|y) B=1 ;; (z*) B=2 ;; *) A=(3) ;; esac", ": ${B:=x} ${C=5}",
            "mapfile -t ARGS < <(echo a; echo b)", "(A=sub)", "A=pipe | true", "A=bg &",
            "if true; then A=1; else A=2; fi", "true && A=1", "false || { A=1; B=2; }",
            "while false; do A=1; done", "f() { local A=1; B=$A; }; f",
            "f() { A=$1; return; B=3; }; f 9", "f() { if true; then return; fi; A=1; }\nf",
            "function f { A=1; }", "{ A=grouped; }", "true &&\nA=late", "set -- a b",
            "A=$(echo sub; echo '# )')", "A=$(( NUM * 2 ))", "[ -e /none ] && source /none",
            "source ./other.sh", ". other.sh", "set -f", "A='*'", "B='a*'", "A=' lead'",
            "B='trail '", "A='{a,b}'", "B='~'", "A=$'a\\nb'", "A=\\ ", "ARGS=(a \\ \n b)",
            "exec 3>&1", "true; exit 0", "if false; then exit; fi", "local A=1", "cd /", "X=(",
            "fi", "'if' true", "alias q=x", "A=1 B=$A :", "A=5 export B=$A", ": <<$A\nx\n$A",
            ": <<E\\\nE\nx\nE", "echo $(cat <<E\n)\nE\n) >/dev/null", "A=[x", "ARGS+=x",
            "A+=1 B+=2", "declare A", "readonly MODEL_DIR", "export A B", "A=${ARGS[*]}",
            'B="${ARGS[@]}"', "time A=1", "! A=1", "A=1;B=2", "python3 -c train.py",
            "echo python3 train.py",
        )
    ),
)  # fmt: skip


@st.composite
def _odd_script(draw: st.DrawFn) -> tuple[str, str]:
    lines = draw(st.lists(_odd_statement, max_size=5))
    program = draw(_program(_odd_word))
    form = draw(
        st.sampled_from(
            (
                *("{}", "{}", "if true; then {}\nfi", "main() {{\n{}\n}}\nmain a b", "(\n{}\n)"),
                *("for i in 1; do\n{}\nA=next\ndone", "{}\nA=behind"),
                "main() {{ {}\n}}\nA=then; main",
            )
        )
    )
    begun = "\n".join(["NUM=5", "A=x", "B='y  z'", *lines])
    other = "\n".join(draw(st.lists(_odd_statement, max_size=2)))
    return f"{begun}\n{form.format(program)}\n", other


# ---- the comparison -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("shell")
    (folder / "bin").mkdir()
    for name in ("dirname", "basename"):
        (folder / "bin" / name).symlink_to(str(shutil.which(name)))
    (folder / "stubs.sh").write_text(_STUBS)
    (folder / "cwd").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _OUTSIDE.items():
            patch.setenv(name, value)
        yield folder


def _run(ground: Path, script: Path) -> list[list[str]]:
    """The arguments of each call that bash makes."""
    environment = {"PATH": str(ground / "bin"), "BASH_ENV": str(ground / "stubs.sh"), **_OUTSIDE}
    done = subprocess.run(
        [BASH, "--norc", "--noprofile", str(script)],
        cwd=ground / "cwd",
        env=environment | {"HOME": "/home/x"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    calls = re.split(r"(?:^|(?<=\0))call\0", done.stdout.decode(errors="surrogateescape"))[1:]
    return [call.split("\0")[:-2] for call in calls]


def _agrees(read: LaunchScript, passed: list[str]) -> bool:
    pattern = "".join(
        re.escape(argument.text) + "\0" if argument.known else r"(?:[^\0]*\0)*?"
        for argument in read.arguments
    )
    return re.fullmatch(pattern, "".join(word + "\0" for word in passed)) is not None


def _written(ground: Path, script: tuple[str, str]) -> Path:
    path = ground / "cwd/run.sh"
    path.write_text(script[0])
    (ground / "cwd/other.sh").write_text(script[1])
    return path


def _pasted(ground: Path, read: LaunchScript) -> Iterator[list[str]]:
    """What the words give in a shell that knows what is outside of the script."""
    words = [each.text if not each.known else shlex.quote(each.text) for each in read.arguments]
    path = ground / "cwd/pasted.sh"
    path.write_text(f"python3 train.py {' '.join(words)}\n")
    yield from _run(ground, path)


@given(script=_plain_script())
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_plain_script_is_read_as_bash_runs_it(ground: Path, script: tuple[str, str]) -> None:
    path = _written(ground, script)
    told = ("gives nothing", "pattern of file names")

    read = read_script(path)

    (passed,) = _run(ground, path)
    assert [line for line in read.unknown if not line.endswith(told)] == []
    assert read.broken == ()
    assert _agrees(read, passed), (read.argv, passed)


@given(script=_odd_script())
@example(script=("A=x\nA=5 export B=$A\npython3 train.py --0 $A\n", ""))
@example(script=("A=x\nA=5 export A\npython3 train.py --0 $A\n", ""))
@settings(max_examples=EXAMPLES, deadline=None)
def test_what_is_not_understood_is_told_and_never_guessed(
    ground: Path, script: tuple[str, str]
) -> None:
    path = _written(ground, script)

    try:
        read = read_script(path)
    except ConfigError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert re.search(r"(run|other)\.sh", refused)
        return

    calls = _run(ground, path)
    told = read.unknown or read.broken
    assert told or all(argument.known for argument in read.arguments)
    assert told or len(calls) == 1, (read.argv, calls)
    assert not calls or _agrees(read, calls[0]), (read, calls)
    outside = [
        line for line in read.unknown if not line.endswith("comes from outside of the script")
    ]
    if calls and not outside and not read.broken:
        assert [*_pasted(ground, read)] == calls
