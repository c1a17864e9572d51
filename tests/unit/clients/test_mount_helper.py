"""Options of mount(8) and fstab, as words of `chelonia mount`."""

from __future__ import annotations

import sys

import pytest

from chelonia_clients import cli, mount_helper
from chelonia_clients.mount_helper import words_of


def test_an_fstab_line_becomes_a_mount() -> None:
    options = (
        "rw,_netdev,allow_other,cache_size=2G,cert=/etc/c.pem,key=/etc/k.pem,ca_dir=/etc/cas,bartender=https://b:1/B"
    )
    assert words_of(["/lab", "/mnt/lab", "-s", "-v", "-t", "chelonia", "-o", options]) == [
        "mount", "--background", "--cert", "/etc/c.pem", "--key", "/etc/k.pem", "--ca-dir", "/etc/cas",
        "--bartender", "https://b:1/B", "-o", "rw,_netdev,allow_other,cache_size=2G", "/lab", "/mnt/lab",
    ]  # fmt: skip
    assert words_of(["/lab", "/mnt", "-r"]) == ["mount", "--background", "-o", "ro", "/lab", "/mnt"]
    assert words_of(["/lab", "/mnt"]) == ["mount", "--background", "/lab", "/mnt"]


def test_every_bartender_of_an_fstab_line_is_named() -> None:
    assert words_of(["/lab", "/mnt", "-o", "bartender=https://a/B,bartender=https://b/B"]) == [
        "mount", "--background", "--bartender", "https://a/B", "--bartender", "https://b/B", "/lab", "/mnt",
    ]  # fmt: skip


def test_a_trial_of_mount_mounts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """mount(8) hands `-f` (`mount -fav`) on, and expects all but the mount."""
    monkeypatch.setattr(cli, "main", lambda: pytest.fail("it mounted"))
    monkeypatch.setattr(sys, "argv", ["mount.chelonia", "/lab", "/mnt", "-f", "-v", "-o", "rw"])
    assert mount_helper.main() == 0


@pytest.mark.parametrize(("ended", "told"), [(0, 0), (4, 32), (7, 32)])
def test_a_mount_that_failed_has_the_exit_code_that_mount_expects(
    monkeypatch: pytest.MonkeyPatch, ended: int, told: int
) -> None:
    """The codes of mount(8) are bits: 4 would mean a fault in mount itself, 7 three failures."""
    monkeypatch.setattr(cli, "main", lambda: ended)
    monkeypatch.setattr(sys, "argv", ["mount.chelonia", "/lab", "/mnt"])
    assert mount_helper.main() == told
