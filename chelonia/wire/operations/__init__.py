"""The operations of our services on the wire: the SOAP form of each table of `core.operations`."""
