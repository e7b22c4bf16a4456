"""The async client: the same names and calls as `slateboard`, to be awaited.

async with slateboard.aio.connect("127.0.0.1:7400") as client:
    board = client.board("orders")
    plan = await board.get("plan/current")
    async for batch in board.watch("plan/", after=plan.mod_revision): ...
"""

from slateboard._async.admin import AsyncAdmin as Admin
from slateboard._async.board import AsyncBoard as Board
from slateboard._async.client import AsyncClient as Client
from slateboard._async.client import connect
from slateboard._async.lock import AsyncLock as Lock
from slateboard._async.lock_watch import AsyncLockWatch as LockWatch
from slateboard._async.pages import AsyncPages as Pages
from slateboard._async.recipes import AsyncBarrier as Barrier
from slateboard._async.recipes import AsyncClaimedTask as ClaimedTask
from slateboard._async.recipes import AsyncElection as Election
from slateboard._async.recipes import AsyncInbox as Inbox
from slateboard._async.recipes import AsyncTaskQueue as TaskQueue
from slateboard._async.session import AsyncSession as Session
from slateboard._async.transaction import AsyncTransaction as Transaction
from slateboard._async.transport import AsyncStream as Stream
from slateboard._async.transport import AsyncTransport as Transport
from slateboard._async.watch import AsyncWatch as Watch

__all__ = [
    "Admin",
    "Barrier",
    "Board",
    "ClaimedTask",
    "Client",
    "Election",
    "Inbox",
    "Lock",
    "LockWatch",
    "Pages",
    "Session",
    "Stream",
    "TaskQueue",
    "Transaction",
    "Transport",
    "Watch",
    "connect",
]
