"""The Bartender: decides who may do what and offers the user-facing operations."""
