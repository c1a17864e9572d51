"""Every operation of the six ports, described once: its name on the wire, its callers, its retries.

These tables yield the access guard (`core.rights.access`), the stubs and their retries (`hosting.net.rpc_client`)
and the compact encoding (`wire.compact`). `wire.operations` adds the SOAP form of the public ones. A new operation is
a row in the module of its port, a method of the port and its handler.

Invariants: every method of a port has one row; nobody may call an operation without a row.
"""
# One module per port: a command line that calls a Bartender does not load the value types of all the others.
