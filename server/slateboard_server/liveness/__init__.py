"""Who is alive: the leases of locks, in this process or in etcd. Nothing here knows who owns what.

`etcd.py` decides what is asked of etcd, `connection.py` finds a member that answers, `keepalive.py` shares one stream
between all renewals. `etcdpb` is generated from a few messages of etcd's API under a package name of our own: the PyPI
package `etcd3aio` has them all, but puts a folder first on `sys.path` that hides googleapis-common-protos' `google.api`
and registers etcd's own names for the whole process.
"""

from slateboard_server.liveness.etcd import EtcdLiveness
from slateboard_server.liveness.local import LocalLiveness
from slateboard_server.liveness.none import NoLiveness

__all__ = ["EtcdLiveness", "LocalLiveness", "NoLiveness"]
