"""Makes client/slateboard/_sync from client/slateboard/_async, and the sync client's tests from the async one's.

    python tools/async_to_sync.py            write
    python tools/async_to_sync.py --check    write nothing; fail if _sync is behind

The transformation knows words, not code: it drops `async` and `await`, and renames. Where the two clients truly differ
(waiting, threads, channels) the code calls slateboard._shim_async, whose twin _shim_sync is written by hand.
"""

import argparse
import difflib
import io
import re
import subprocess
import sys
import sysconfig
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAIRS = (
    (ROOT / "client" / "slateboard" / "_async", ROOT / "client" / "slateboard" / "_sync"),
    (ROOT / "tests" / "client" / "aio", ROOT / "tests" / "client" / "sync"),
)
RUFF = Path(sysconfig.get_path("scripts")) / "ruff"

_RENAMED = {
    "_async": "_sync",
    "aio": "sync",
    "AIO": "SYNC",
    "_shim_async": "_shim_sync",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "StopAsyncIteration": "StopIteration",
}
_UNWRAPPED = {"Awaitable", "MaybeAwaitable"}
_PREFIXED = re.compile(r"\bAsync(?=[A-Z])")  # AsyncBoard, and AsyncIterator too
_WORDS = re.compile(r"\b(?:async |await )")


def main() -> int:
    """Runs what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description="Make the sync client from the async one.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail on any difference")
    check = parser.parse_args().check

    results = [bring_up_to_date(source, target, check) for source, target in PAIRS]
    if not all(results):
        print("the sync client is behind; run `python tools/async_to_sync.py`")
    return 0 if all(results) else 1


def bring_up_to_date(source: Path, target: Path, check: bool) -> bool:
    """Writes what is stale in a folder; or, to `check`, shows it. Whether all is well then."""
    made = {path.name: convert(path, target) for path in sorted(source.glob("*.py"))}
    kept = {path.name: path.read_text(encoding="utf-8") for path in target.glob("*.py")}
    stale = sorted(name for name in made.keys() | kept.keys() if made.get(name) != kept.get(name))
    for name in stale:
        path = target / name
        if check:
            lines = kept.get(name, "").splitlines(True), made.get(name, "").splitlines(True)
            label = path.relative_to(ROOT).as_posix()
            sys.stdout.writelines(difflib.unified_diff(*lines, label, f"{label} (as it should be)"))
        elif name in made:
            target.mkdir(exist_ok=True)
            path.write_text(made[name], encoding="utf-8")
        else:
            path.unlink()
    return not stale or not check


def convert(path: Path, target: Path) -> str:
    """The sync twin of a module, formatted."""
    text = f"# Made from {path.parent.name}/{path.name} by tools/async_to_sync.py; do not edit.\n"
    text += transform(path.read_text(encoding="utf-8"))
    name = str(target / path.name)
    fix = (
        "check",
        "--quiet",
        "--fix",
        "--exit-zero",
        "--select=I,F401,SIM117",
        "--stdin-filename",
        name,
        "-",
    )
    return _ruff(_ruff(text, *fix), "format", "--quiet", "--stdin-filename", name, "-")


def transform(text: str) -> str:
    """The text without `async` and `await`, renamed, and `Awaitable[X]` as plain `X`."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    edits: list[tuple[int, int, str]] = []
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for index, token in enumerate(tokens):
        start, end = (starts[row - 1] + column for row, column in (token.start, token.end))
        following = tokens[index + 1] if index + 1 < len(tokens) else token
        if token.type == tokenize.NAME and token.string in {"async", "await"}:
            edits.append((start, starts[following.start[0] - 1] + following.start[1], ""))
        elif token.type == tokenize.NAME and token.string in _UNWRAPPED and following.string == "[":
            closing = _closing(tokens, index + 1)
            edits.append((start, starts[following.end[0] - 1] + following.end[1], ""))
            edits.append(
                (
                    starts[closing.start[0] - 1] + closing.start[1],
                    starts[closing.end[0] - 1] + closing.end[1],
                    "",
                )
            )
        elif token.type == tokenize.NAME:
            edits.append((start, end, _RENAMED.get(token.string, _PREFIXED.sub("", token.string))))
        elif token.type in {tokenize.STRING, tokenize.COMMENT}:
            edits.append((start, end, _WORDS.sub("", _PREFIXED.sub("", token.string))))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text.replace("slateboard.sync", "slateboard")


def _closing(tokens: list[tokenize.TokenInfo], opening: int) -> tokenize.TokenInfo:
    depth = 0
    for token in tokens[opening:]:
        depth += (token.string == "[") - (token.string == "]")
        if depth == 0:
            return token
    raise ValueError("unbalanced brackets")


def _ruff(text: str, *arguments: str) -> str:
    done = subprocess.run(
        [str(RUFF), *arguments], input=text, capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
