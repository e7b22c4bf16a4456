"""What the documents name exists: tests by row, files by link."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_TEST = re.compile(r"`([a-z_]+/test_[a-z_]+\.py)(?:::(test_[a-z0-9_]+))?`")
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def test_every_test_that_a_row_names_exists() -> None:
    """A renamed test must not leave a row without cover."""
    text = (ROOT / "tests" / "README.md").read_text()
    named = _TEST.findall(text)
    assert len(named) > 30
    for file, test in named:
        path = ROOT / "tests" / file
        assert path.is_file(), file
        if test:
            assert re.search(rf"def {test}\(", path.read_text()), f"{file}::{test}"


@pytest.mark.parametrize(
    "document",
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/performance.md", "docs/languages.md"],
)
def test_every_link_leads_to_a_file(document: str) -> None:
    """Documents link to what is there."""
    path = ROOT / document
    for target in _LINK.findall(path.read_text()):
        assert (path.parent / target).exists(), f"{document} links to {target}"
