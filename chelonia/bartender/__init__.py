"""The Bartender: decides the rights of users and offers the user-facing operations."""
