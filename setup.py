"""Packaging of Chelonia: what is installed, what it needs, which commands it gives.

Three top-level packages come out of one distribution: `chelonia` from the root folder, `chelonia_clients` from
`clients/` and, where the checkout has it, `chelonia_fuse` from `fuse/`. The base dependencies are the client's: all of
them install as wheels, without a compiler and without Berkeley DB. What only a node needs is the extra `server`.
Lower bounds name the oldest release the code is written for; `constraints.txt` names the tested set.
"""

import importlib
import os
import sys
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent

# The one place that states the version; code asks importlib.metadata.version("chelonia").
VERSION = "0.1.0"
# A package of one commit is newer than that of an earlier one: `scripts/build-deb` gives its time and id.
BUILD = os.environ.get("CHELONIA_BUILD", "")

# Folders which hold a top-level package of ours without being one (no __init__.py there: a top-level package called
# `fuse` would shadow the FUSE bindings).
SIDE_FOLDERS = {"chelonia_clients": "clients", "chelonia_fuse": "fuse"}

CLIENT = [
    "aiohttp>=3.12",
    "awscrt>=0.38",
    "cryptography>=43",
    "lxml>=5.3",
    "msgspec>=0.19",
    "pyOpenSSL>=24.3",
    "rich>=13.9",
    "uvloop>=0.21",
    "zlib-ng>=1.0",
]
SERVER = [
    "asn1crypto>=1.5",
    "berkeleydb>=18.1.17",
    "prometheus-client>=0.21",
    "PyJWT>=2.10",
]
MOUNT = [
    "pyfuse3>=3.5",
]
TEST = [
    "boto3>=1.36",
    "hypothesis>=6.120",
    "import-linter>=2.1",
    "mypy>=1.13",
    "pytest>=8.3",
    "pytest-asyncio>=1.0",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.7",
    "requests>=2.32",
    "ruff>=0.9",
    "types-lxml>=2024.12.13",
    "types-requests>=2.32",
    "zeep>=4.3",
]
BENCH = [
    "grpcio>=1.68",
]


def side_packages() -> dict[str, str]:
    """Map each side package that this checkout has to its folder."""
    folders = {name: f"{folder}/{name}" for name, folder in SIDE_FOLDERS.items()}
    return {name: path for name, path in folders.items() if (HERE / path / "__init__.py").exists()}


def all_packages() -> list[str]:
    """List every package of the distribution."""
    found = find_packages(str(HERE), include=["chelonia", "chelonia.*"])
    for name in side_packages():
        found += find_packages(str(HERE / SIDE_FOLDERS[name]), include=[name, f"{name}.*"])
    return sorted(found)


def write_manual() -> str:
    """Write the manual page, made from the table of verbs; returns where, from here."""
    sys.path[:0] = [str(HERE), str(HERE / "clients")]
    try:
        page = importlib.import_module("chelonia_clients.manual").page  # needs nothing but Python
    finally:
        del sys.path[:2]
    (HERE / "build").mkdir(exist_ok=True)
    (HERE / "build" / "chelonia.1").write_text(page(VERSION), encoding="utf-8")
    return "build/chelonia.1"


def shared_files() -> list[tuple[str, list[str]]]:
    """What users and operators get beside the code: configurations, units, alerts, completions, the manual page, and
    the pages that errors name."""

    def found(pattern: str) -> list[str]:
        return sorted(path.relative_to(HERE).as_posix() for path in HERE.glob(pattern) if path.is_file())

    return [
        ("share/chelonia/conf", found("conf/*.toml")),
        ("share/chelonia/prometheus", found("conf/prometheus/*")),
        ("share/chelonia/grafana", found("conf/grafana/*")),
        ("share/chelonia/systemd", found("systemd/*")),
        ("share/chelonia/completion", found("clients/chelonia_clients/completion/*")),
        ("share/chelonia/docs", ["docs/cli.md"]),
        ("share/chelonia/docs/operate", found("docs/operate/*.md")),
        ("share/man/man1", [write_manual()]),
        ("share/man/man8", found("docs/man/*.8")),
    ]


def read_long_description() -> str:
    """Return the README, if the checkout has one."""
    readme = HERE / "README.md"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


setup(
    name="chelonia",
    version=f"{VERSION}+{BUILD}" if BUILD else VERSION,
    description="Replicated storage for groups that span several sites, which notices loss and repairs itself",
    long_description=read_long_description(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=all_packages(),
    package_dir=side_packages(),
    package_data={"": ["py.typed", "*.wsdl", "*.xsd"], "chelonia_clients": ["completion/*"]},
    data_files=shared_files(),
    install_requires=CLIENT,
    extras_require={"server": SERVER, "mount": MOUNT, "test": SERVER + MOUNT + TEST, "bench": SERVER + BENCH},
    entry_points={
        "console_scripts": [
            "chelonia = chelonia_clients.cli:main",
            "cheloniad = chelonia.hosting.command:main",
            "mount.chelonia = chelonia_clients.mount_helper:main",
        ]
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Intended Audience :: System Administrators",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.13",
        "Topic :: System :: Distributed Computing",
        "Topic :: System :: Filesystems",
        "Typing :: Typed",
    ],
    zip_safe=False,
)
