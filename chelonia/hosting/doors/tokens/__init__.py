"""Who a bearer token is: our own tokens and share links, and those of configured issuers."""
