"""Parts of uploads that no snapshot knows, put together again: decided in `decide`, carried out in `act`."""
