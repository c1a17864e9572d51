"""The quick way to load aiohttp: it leaves nothing behind for other code in the process."""

from __future__ import annotations

import subprocess
import sys


def test_contexts_made_afterwards_trust_the_systems_cas_as_ever() -> None:
    told = "import ssl, chelonia.hosting.net.quick_bodies; print('set_default_verify_paths' in vars(ssl.SSLContext))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_daemon_does_not_read_the_systems_cas() -> None:
    """It trusts none of them, and aiohttp would keep them twice: 1.6 MiB."""
    program = """
import ssl, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "aiohttp.connector":
            print("set_default_verify_paths" in vars(ssl.SSLContext))

sys.meta_path.insert(0, Finder())
import chelonia.hosting.cheloniad
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]
