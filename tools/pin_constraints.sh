#!/bin/sh
# Writes exact pins of a fresh installation of everything to the file named: versions only, so that the file says
# nothing of where packages come from. Run it with the oldest Python supported: newer ones need a subset.
set -eu
target=${1:-constraints.txt}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python=$(sh "$(dirname "$0")/find_python.sh")
"$python" -m venv "$scratch/venv"
PIP_DISABLE_PIP_VERSION_CHECK=1
export PIP_DISABLE_PIP_VERSION_CHECK
"$scratch/venv/bin/python" -m pip --quiet --no-input install -e '.[server,dev]'
{
    echo "# Exact versions of everything that .[server,dev] brings. Made by \`make constraints\`; do not edit."
    "$scratch/venv/bin/python" -m pip freeze --exclude-editable
} >"$scratch/constraints.txt"
if grep -nE '://|@ |--hash' "$scratch/constraints.txt"; then
    echo "an entry is not a plain name==version" >&2
    exit 1
fi
cp "$scratch/constraints.txt" "$target"
