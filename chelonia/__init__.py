"""Chelonia: self-healing, replicated storage for groups spread over several sites."""
