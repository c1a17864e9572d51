"""The suite of ceph/s3-tests against a cluster of our own: a test that has passed once must pass again (`make
conform-s3`).

    S3_TESTS=<checkout> make conform-s3             # the tests of the gate, tests/conform/s3_tests.txt

    S3_TESTS=<checkout> make conform-s3 ARGS=--all  # everything this door is about; new passes are added to the gate

`--all` also prints how many pass of the tests that the suite marks as failing at Amazon; they count for nothing.
The suite needs `munch`, `isodate`, `httplib2` and `pytz` beside what tests install: `S3_TESTS_PYTHON` names a Python
that has them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster.harness import Cluster

GATE = Path(__file__).with_suffix(".txt")
MODULE = "s3tests/functional/test_s3.py"
OTHERS = [
    "abac_test",
    "appendobject",
    "auth_aws2",
    "bucket_encryption",
    "bucket_logging",
    "bucket_policy",
    "cloud_restore",
    "cloud_transition",
    "encryption",
    "iam_account",
    "iam_cross_account",
    "iam_role",
    "iam_tenant",
    "iam_user",
    "lifecycle",
    "object_lock",
    "object_ownership",
    "role_policy",
    "s3website",
    "sse_s3",
    "storage_class",
    "user_policy",
]
"""Marks of tests for features that this door does not offer."""
FAILS_ON_AWS = "fails_on_aws"
WORDS = [
    "sse",
    "kms",
    "lock",
    "website",
    "logging",
    "policy",
    "lifecycle",
    "post_object",
    "ownership",
    "public_block",
    "block_public",
    "retention",
    "legal_hold",
    "object_v2",
    "tenant_v2",
]
"""Words in names of other tests that are left out. `public_block` and `block_public` are of PublicAccessBlock, with
`lock` in their names too. `post_object`, `object_v2` and `tenant_v2` sign by Version 2."""
UNSIGNED = [
    "post_object_anonymous_request",
    "post_object_set_success_code",
    "post_object_set_invalid_success_code",
    "post_object_tags_anonymous_request",
]
"""Tests of forms that nobody signs: these four are run."""
USERS = {"s3 main": "user", "s3 alt": "user2", "s3 tenant": "user2", "iam": "user", "iam root": "user",
         "iam alt root": "user2"}  # fmt: skip


def main() -> int:
    """Run the suite; 1 when a test of the gate fails."""
    checkout, everything = os.environ.get("S3_TESTS", ""), "--all" in sys.argv[1:]
    if not checkout or not (Path(checkout) / MODULE).exists():
        print("S3_TESTS names no checkout of ceph/s3-tests", file=sys.stderr)
        return 2
    gate, outside = set(GATE.read_text().split()), (set[str](), set[str]())
    with tempfile.TemporaryDirectory() as scratch:
        cluster = Cluster(Path(scratch) / "cluster")
        cluster.start()
        try:
            # The suite expects that what its users make is theirs alone.
            _told(cluster, "admin", "modify", "/", "unset", "defaultPolicy", "ALL")
            settings = _settings(cluster, Path(scratch))
            chosen = _chosen() if everything else [f"{MODULE}::{name}" for name in sorted(gate)]
            passed, failed = _run(Path(checkout), settings, chosen)
            if everything:
                outside = _run(Path(checkout), settings, _chosen(fails_on_aws=True))
        finally:
            cluster.stop()
    lost = sorted(gate - passed)
    print(f"passed {len(passed)}, failed {len(failed)}, of the gate {len(gate) - len(lost)} of {len(gate)}")
    if everything:
        print(f"of {sum(map(len, outside))} that fail at Amazon, not counted: passed {len(outside[0])}")
    for name in lost:
        print(f"passed before, and not now: {name}")
    if everything and not lost:
        GATE.write_text("".join(f"{name}\n" for name in sorted(gate | passed)))
    return 1 if lost else 0


def _settings(cluster: Cluster, scratch: Path) -> Path:
    """The suite's configuration, with fresh keys."""
    lines = [
        "[DEFAULT]", "host = localhost", f"port = {cluster.s3_url.rpartition(':')[2]}", "is_secure = True",
        "ssl_verify = False", "[fixtures]", "bucket prefix = st-{random}-", "iam name prefix = s3-tests-",
        "iam path prefix = /s3-tests/",
    ]  # fmt: skip
    keys = {}
    for who in sorted(set(USERS.values())):
        (keys[who],) = json.loads(_told(cluster, who, "--json", "s3", "key", "create"))["results"]
    for section, who in USERS.items():
        key = keys[who]
        lines += [f"[{section}]", f"display_name = {key['dn']}", f"user_id = {key['dn']}", "email = x@example.org",
                  "api_name = eu-1", f"access_key = {key['id']}", f"secret_key = {key['secret']}",
                  "tenant = none"]  # fmt: skip
    authorities = "".join(each.read_text() for each in sorted(cluster.ca_dir.glob("*.0")))
    (scratch / "ca.pem").write_text(authorities)
    path = scratch / "s3tests.conf"
    path.write_text("\n".join(lines) + "\n")
    return path


def _told(cluster: Cluster, who: str, *words: str) -> bytes:
    """The command's output for a user."""
    command = [str(Path(sys.executable).parent / "chelonia"), "--cluster", str(cluster.root / "cluster.json")]
    return subprocess.run([*command, "--as", who, *words], capture_output=True, check=True).stdout


def _chosen(*, fails_on_aws: bool = False) -> list[str]:
    """Options of pytest for all that this door is about, or instead for those of them that fail at Amazon."""
    others, words = " or ".join(OTHERS), " or ".join(WORDS)
    marks = f"{FAILS_ON_AWS} and not ({others})" if fails_on_aws else f"not ({FAILS_ON_AWS} or {others})"
    return [MODULE, "-m", marks, "-k", f"not ({words}) or {' or '.join(UNSIGNED)}"]


def _run(checkout: Path, settings: Path, chosen: list[str]) -> tuple[set[str], set[str]]:
    """Names of tests that passed, and of those that did not."""
    python = os.environ.get("S3_TESTS_PYTHON", sys.executable)
    options = ["-W", "ignore", "--tb=line", "--show-capture=no", "--timeout=300"]
    command = [python, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "s3_tests_plugin", *options]
    paths = os.pathsep.join((str(checkout), str(Path(__file__).parent)))
    environment = os.environ | {
        "S3TEST_CONF": str(settings),
        "PYTHONPATH": paths,
        "SSL_CERT_FILE": str(settings.parent / "ca.pem"),
    }
    with subprocess.Popen(
        [*command, *chosen], cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        passed: set[str] = set()
        failed: set[str] = set()
        for line in running.stdout:
            print(line, end="", flush=True)
            name = line.partition("::")[2].partition(" ")[0]
            if " PASSED" in line:
                passed.add(name)
            elif " FAILED" in line or " ERROR" in line:
                failed.add(name)
    return passed - failed, failed


if __name__ == "__main__":
    sys.exit(main())
