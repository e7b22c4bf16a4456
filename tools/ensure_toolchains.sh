#!/bin/sh
# Install the toolchains that the example clients are built with, where they are missing and apt-get can bring them.
# Never fails: a test that needs one is skipped with the reason where it could not be installed.
set -u
missing=""
command -v go >/dev/null || missing="$missing golang-go"
command -v node >/dev/null || missing="$missing nodejs"
command -v npm >/dev/null || missing="$missing npm"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "not installed, and only root with apt-get could:$missing" >&2
    exit 0
fi
apt-get -q update >/dev/null 2>&1
# shellcheck disable=SC2086 -- a list of packages
DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends $missing >/dev/null 2>&1 ||
    echo "could not install:$missing" >&2
exit 0
