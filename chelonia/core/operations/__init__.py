"""Every operation of the six ports, described once: name on the wire, who may call it, how it may be repeated.

From these tables come the access guard (`core.rights.access`), the stubs and their retries (`hosting.net.rpc_client`)
and the compact encoding (`wire.compact`); `wire.operations` adds the SOAP form of what is public. A new operation is
a row in the module of its port, a method of the port and its handler. One port, one module: a command line that asks
a Bartender does not load the value types of all the others.

Invariants: every method of a port has one row; an operation without a row may be called by nobody.
"""
