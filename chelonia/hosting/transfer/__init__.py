"""The byte-transfer engine: files to and from Shepherds by way of a Bartender, for clients and doors alike."""
