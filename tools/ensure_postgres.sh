#!/bin/sh
# Makes sure that PostgreSQL's server programs are here, installing Debian's packages where that is possible.
# Exit 0: they are. Exit 1: they are not, and the reason is printed; tests that need them are then skipped.
have_programs() {
    command -v initdb >/dev/null 2>&1 && return 0
    for bin in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin; do
        [ -x "$bin/initdb" ] && return 0
    done
    command -v pg_config >/dev/null 2>&1 && [ -x "$(pg_config --bindir)/initdb" ]
}

have_programs && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "PostgreSQL's programs are not here, and there is no apt-get to install them with" >&2
    exit 1
fi
if [ "$(id -u)" -eq 0 ]; then as_root=; else as_root="sudo -n"; fi
if [ -n "$as_root" ] && ! sudo -n true 2>/dev/null; then
    echo "PostgreSQL's programs are not here, and this user may not install them" >&2
    exit 1
fi
# The tests start clusters of their own: Debian's default cluster would only take a port.
if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
    $as_root mkdir -p /etc/postgresql-common
    echo "create_main_cluster = false" | $as_root tee /etc/postgresql-common/createcluster.conf >/dev/null
fi
log=$(mktemp)
if ! { $as_root apt-get update && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y \
    --no-install-recommends -o Dpkg::Options::=--force-confold postgresql; } >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    echo "PostgreSQL could not be installed" >&2
fi
rm -f "$log"
have_programs
