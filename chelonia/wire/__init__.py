"""Bytes to and from core's messages: XML, SOAP, records on disk, tickets, ranges. No I/O."""
