#!/bin/sh
# Prints a Python of at least 3.11 that can make virtual environments; says what is missing otherwise.
# PYTHON=... overrides the search. A name on PATH may be a version manager's stub, so each candidate is run.
seen=
for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
    version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    if ! "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        seen="$seen $candidate ($version)"
    elif ! "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
        seen="$seen $candidate ($version, without its venv module: on Debian install python3-venv)"
    else
        command -v "$candidate"
        exit 0
    fi
done
echo "Slateboard needs Python 3.11 or newer with venv. Found:${seen:- none}." >&2
echo "Install one, or name it: make PYTHON=/path/to/python3.12 setup" >&2
exit 1
