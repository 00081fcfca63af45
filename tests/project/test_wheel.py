#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make wheel` makes a wheel that runs where nothing of what it was built from is there, and a source distribution
that builds without a checkout: each is installed into an environment of its own, outside the checkout. Without
PyPI, or with sanitizers, they are skipped."""

import email
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from checks import run  # noqa: E402

BUILD = (ROOT / os.environ.get("BUILD", "build")).resolve()
# Without what tests/run and its make set.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in (
    "CFLAGS", "CPPFLAGS", "LDFLAGS", "MAKEFLAGS", "MAKELEVEL", "NVSWAP_LIBRARY", "PYTHONPATH", "WERROR")}
PYTHON = os.environ.get("DEBIAN_PYTHON", "/usr/bin/python3")
VERSION = re.search(r'NVS_VERSION\s+"(.*)"', (ROOT / "include/nvswap/version.h").read_text())[1]
INFORMATION = f"nvswap-{VERSION}.dist-info"
# Swaps more than the pool holds out to its directory and in again, and prints what is mapped from files.
ROUND_TRIP = """
import os
import nvswap
block = {"device": "nvme", "nvme_path": os.getcwd(), "buffer_count": 2, "buffer_size": 1 << 18}
data = {f"layer.{i}": os.urandom(1 << 18) for i in range(8)}
config = nvswap.Config({"zero_optimization": {"offload_param": block}})
with nvswap.Engine(config, arrays="memoryview") as engine:
    engine.register_all({name: ("U8", 1 << 18) for name in data})
    for name in data:
        with engine.pinned(name, "w") as arrays:
            arrays[name][:] = data[name]
    for name in data:
        with engine.pinned(name) as arrays:
            assert bytes(arrays[name]) == data[name]
with open("/proc/self/maps") as maps:
    print(*{line.split(None, 5)[5].strip() for line in maps if "/" in line}, sep="\\n")
"""


def output_of(command, directory=ROOT, environment=None):
    """What a command writes, or None after printing it, if it fails."""
    done = subprocess.run(command, cwd=directory, env=ENVIRONMENT if environment is None else environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600, check=False)
    if done.returncode:
        print(done.stdout)
    return None if done.returncode else done.stdout


def make(goal):
    return output_of(["make", "--no-print-directory", f"BUILD={BUILD}", goal])


def mapped_by_round_trip(directory, distribution, *options, before=()):
    """Installs a distribution and swaps with it, without anything of the environment. Returns what is mapped then."""
    store, environment = directory / "store", directory / "environment"
    store.mkdir()
    if output_of([PYTHON, "-m", "venv", environment]) is None or output_of(
            [*before, environment / "bin/pip", "install", "-q", *options, distribution], directory) is None:
        return None
    return output_of([environment / "bin/python", "-I", "-c", ROUND_TRIP], store, {})


def libraries_of(wheel):
    with zipfile.ZipFile(wheel) as file:
        return {pathlib.Path(name).name for name in file.namelist() if name.startswith("nvswap.libs/")}


def a_wheel_has_the_package_its_libraries_and_licences_alone(wheel, _):
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        bill = json.loads(file.read(f"{INFORMATION}/sboms/auditwheel.cdx.json"))
    libraries = libraries_of(wheel)
    packages = {part["name"] for part in bill["components"] if part["purl"].startswith("pkg:deb/")}
    licences = packages | {"LICENSE"} | set(os.listdir("/usr/share/common-licenses"))
    wanted = {str(path.relative_to(ROOT / "python")) for path in (ROOT / "python/nvswap").rglob("*.py")}
    wanted |= {"nvswap/py.typed", "nvswap/_native.abi3.so", *(f"nvswap.libs/{name}" for name in libraries)}
    wanted |= {f"{INFORMATION}/{name}" for name in (
        "METADATA", "RECORD", "WHEEL", "top_level.txt", "sboms/auditwheel.cdx.json", "licenses/LICENSE",
        *(f"licenses/{package}" for package in packages))}
    wrong = (wanted - names) | (names - wanted - {f"{INFORMATION}/licenses/{name}" for name in licences})
    for name in wrong:
        print(name)
    return not wrong and len(packages) == len(libraries)


def a_wheel_swaps_without_a_compiler_headers_and_libraries_of_the_system(wheel, directory):
    mapped = mapped_by_round_trip(directory, wheel, "--only-binary", ":all:")
    if mapped is None:
        return False
    libraries = libraries_of(wheel)
    used = {path for path in mapped.split() if re.match(r"lib(aio|hwloc|udev|uring|xxhash)\b", pathlib.Path(path).name)}
    print(*used, sep="\n")
    return (wheel.name.startswith(f"nvswap-{VERSION}-cp39-abi3-manylinux_") and
            {pathlib.Path(path).name for path in used} == libraries and
            all(path.startswith(f"{directory}/environment/") for path in used))


def a_source_distribution_builds_and_swaps_without_a_checkout(wheel, directory):
    hidden = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(ROOT)]
    if output_of([*hidden, "true"]) is None:
        return "the checkout can't be hidden: no mount namespaces"
    distribution = directory / f"nvswap-{VERSION}.tar.gz"
    distribution.write_bytes((wheel.parent / distribution.name).read_bytes())
    mapped = mapped_by_round_trip(directory, distribution, before=hidden)
    return mapped is not None and f"{directory}/environment/lib" in mapped


def the_extra_deepspeed_names_the_oldest_release_supported(wheel, _):
    with zipfile.ZipFile(wheel) as file:
        metadata = email.message_from_bytes(file.read(f"{INFORMATION}/METADATA"))
    oldest = re.search(r"^OLDEST\b.*?= \((\d+), (\d+), (\d+)\)",
                       (ROOT / "python/nvswap/deepspeed/releases.py").read_text(), re.M)
    wanted = {"torch", f"deepspeed>={'.'.join(oldest.groups())}"}
    return {line.split(";")[0].strip() for line in metadata.get_all("Requires-Dist")
            if re.search(r"""extra == ['"]deepspeed['"]""", line)} == wanted


def main():
    tests = (a_wheel_has_the_package_its_libraries_and_licences_alone,
             a_wheel_swaps_without_a_compiler_headers_and_libraries_of_the_system,
             a_source_distribution_builds_and_swaps_without_a_checkout,
             the_extra_deepspeed_names_the_oldest_release_supported)
    reason = ("a wheel is not built with sanitizers" if os.environ.get("SANITIZE") else
              "python3-venv or PyPI is missing" if make(BUILD / "wheel-tools/ready") is None else None)
    if reason:
        for test in tests:
            print(f"skip {test.__name__}: {reason}")
        return 0
    if make("wheel") is None:
        return 1
    wheel, status = next((BUILD / "dist").glob("*.whl")), 0
    for test in tests:
        with tempfile.TemporaryDirectory(prefix="wheel.") as directory:
            status |= run([test], wheel, pathlib.Path(directory))
    return status


if __name__ == "__main__":
    sys.exit(main())
