"""The quick way to load aiohttp: it leaves nothing behind that others in the process would meet."""

from __future__ import annotations

import subprocess
import sys


def test_contexts_made_afterwards_trust_the_systems_cas_as_ever() -> None:
    told = "import ssl, chelonia.hosting.net.quick_bodies; print('set_default_verify_paths' in vars(ssl.SSLContext))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
