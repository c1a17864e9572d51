"""Rights: policies, scopes of tokens, claims of issuers, locks, and the roles behind operations."""
