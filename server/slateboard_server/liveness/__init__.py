"""Who is alive: the leases of locks, in this process or in etcd. Nothing here knows who owns what."""

from slateboard_server.liveness.etcd import EtcdLiveness
from slateboard_server.liveness.local import LocalLiveness
from slateboard_server.liveness.none import NoLiveness

__all__ = ["EtcdLiveness", "LocalLiveness", "NoLiveness"]
