"""Support for tests of every folder: polling, capabilities, the log guard."""
