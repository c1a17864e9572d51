"""Holders of bearer tokens: of our own tokens and share links, and of configured issuers' tokens."""
