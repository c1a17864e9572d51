"""What operations of our services look like on the wire: the SOAP form of each table of `core.operations`."""
