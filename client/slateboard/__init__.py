"""Slateboard's Python client: what a team of agents knows, on one board.

    import slateboard

    with slateboard.connect("127.0.0.1:7400") as client:
        board = client.board("orders")
        plan = board.get("plan/current")
        board.update("plan/current", lambda plan: {**plan, "step": 3})

`slateboard.aio` is the same, async. Every error derives from `SlateError`; the tree is in `slateboard.errors`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slateboard._api import *  # noqa: F403 -- _api lists it
    from slateboard._api import __all__ as __all__


def __getattr__(name: str) -> Any:
    # What brings in grpc waits until it is used: the command line's help, its completion and the error classes do
    # without, and who wants to set gRPC's variables still can after `import slateboard`.
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "errors":
        return importlib.import_module("slateboard.errors")
    from slateboard import _api  # noqa: PLC0415 -- see above

    try:
        return getattr(_api, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    from slateboard import _api  # noqa: PLC0415 -- as above

    return sorted({*globals(), *_api.__all__})
