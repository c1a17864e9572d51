"""What tests of every folder share: polling, capabilities, the log guard."""
