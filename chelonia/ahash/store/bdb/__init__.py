"""The A-Hash's store on Berkeley DB, alone and replicated."""
