"""Options of mount(8) and fstab, as words of `chelonia mount`."""

from __future__ import annotations

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
