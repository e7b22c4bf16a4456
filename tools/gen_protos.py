"""Generates client/slateboard/v1 from protos/, and the few messages of etcd that the server speaks; keeps the record of what the API has promised.

    python tools/gen_protos.py                       regenerate the code; extend the baseline
    python tools/gen_protos.py --accept-breaking     the same, and let the baseline forget what was broken
    python tools/gen_protos.py --check               write nothing; fail if lint, code or baseline are behind

The baseline, protos/baseline.binpb, is a compiled image of the API as it was last promised. It is committed, so a
breaking change is found in any clone, without network, other branches or history. A compatible change extends it in
the same commit; an incompatible one has to be asked for, and shows as such in review.
"""

import argparse
import filecmp
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
PACKAGE = Path("slateboard/v1")
TARGET = ROOT / "client" / PACKAGE
BASELINE = PROTOS / "baseline.binpb"
ETCD = ROOT / "server" / "slateboard_server" / "liveness" / "etcdpb"
SCRIPTS = Path(sysconfig.get_path("scripts"))

_INIT = '"""Generated from protos/slateboard/v1 by `make protos`; do not edit."""\n'
_ETCD_INIT = '"""Generated from etcd.proto by `make protos`; do not edit."""\n'
_SERVICE = re.compile(r"^service\s", re.MULTILINE)


def main() -> int:
    """Runs what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description="Generate code from protos/ and keep the API's baseline.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail on any difference")
    parser.add_argument("--accept-breaking", action="store_true", help="record an incompatible change")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="slateboard-protos-") as scratch:
        fresh = Path(scratch) / "code"
        image = Path(scratch) / "image.binpb"
        linted = _buf("lint")
        generate(fresh)
        if not _buf("build", "--exclude-source-info", "-o", str(image)):
            return 1
        compatible = not BASELINE.exists() or _buf("breaking", "--against", str(BASELINE))
        ok = (
            check(fresh, image)
            if options.check
            else write(fresh, image, compatible or options.accept_breaking)
        )
    return 0 if linted and ok and (compatible or options.accept_breaking) else 1


def generate(out: Path) -> None:
    """Writes the whole generated package below `out`.

    Raises:
        SystemExit: protoc refused a file; it has said why.
    """
    out.mkdir(parents=True)
    files = sorted(path.relative_to(PROTOS).as_posix() for path in (PROTOS / PACKAGE).glob("*.proto"))
    if not files:
        sys.exit(f"no .proto file below {PROTOS / PACKAGE}")
    services = [name for name in files if _SERVICE.search((PROTOS / name).read_text(encoding="utf-8"))]
    _protoc(files, f"--python_out={out}", f"--mypy_out=quiet:{out}")
    if services:  # a file without a service would get an empty _pb2_grpc module
        _protoc(services, f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}")
    (out / PACKAGE / "__init__.py").write_text(_INIT, encoding="utf-8")
    etcd = out / ETCD.name
    etcd.mkdir()
    _protoc(["etcd.proto"], f"--python_out={etcd}", f"--mypy_out=quiet:{etcd}", source=ETCD)
    (etcd / "__init__.py").write_text(_ETCD_INIT, encoding="utf-8")


def check(fresh: Path, image: Path) -> bool:
    """Whether the committed code and baseline are what the protos give now; says what is not."""
    stale = [*_stale(fresh / PACKAGE, TARGET), *_stale(fresh / ETCD.name, ETCD)]
    for path in stale:
        print(f"{path.relative_to(ROOT)}: not what the protos give; run `make protos`")
    recorded = BASELINE.exists() and BASELINE.read_bytes() == image.read_bytes()
    if not recorded:
        print(f"{BASELINE.relative_to(ROOT)}: does not record the present API; run `make protos`")
    return not stale and recorded


def _stale(fresh: Path, target: Path) -> list[Path]:
    made, kept = _names(fresh), {name for name in _names(target) if not name.endswith(".proto")}
    _, differ, unread = filecmp.cmpfiles(fresh, target, sorted(made & kept), shallow=False)
    return [target / name for name in sorted({*differ, *unread, *(made ^ kept)})]


def write(fresh: Path, image: Path, allowed: bool) -> bool:
    """Puts the fresh code in place, and the baseline too where that is `allowed`."""
    TARGET.mkdir(parents=True, exist_ok=True)
    made = _names(fresh / PACKAGE)
    for name in _names(TARGET) - made:
        (TARGET / name).unlink()
    for name in made:
        shutil.copyfile(fresh / PACKAGE / name, TARGET / name)
    for name in _names(fresh / ETCD.name):
        shutil.copyfile(fresh / ETCD.name / name, ETCD / name)
    if allowed:
        shutil.copyfile(image, BASELINE)
    else:
        print(
            "The code is regenerated, but the change breaks callers (above). If that is meant, say so in the"
        )
        print("changelog and run `make protos BREAKING=1`.")
    return allowed


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()} if folder.is_dir() else set()


def _protoc(files: list[str], *outputs: str, source: Path = PROTOS) -> None:
    well_known = resources.files("grpc_tools") / "_proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{source}", f"-I{well_known}"]
    command += [f"--plugin={name}={SCRIPTS / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    if subprocess.run([*command, *outputs, *files], check=False, cwd=source).returncode:
        sys.exit("protoc failed")


def _buf(*arguments: str) -> bool:
    environment = {**os.environ, "BUF_CACHE_DIR": str(ROOT / ".cache" / "buf")}
    return (
        subprocess.run([str(SCRIPTS / "buf"), *arguments], check=False, cwd=ROOT, env=environment).returncode
        == 0
    )


if __name__ == "__main__":
    sys.exit(main())
